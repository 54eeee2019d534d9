// Routing: every page, filter and step has its own address after the `#`, so that links and the
// browser's back and forward buttons work.
"use strict";

(() => {
  const { useState, useEffect } = coevo;
  const routes = [];

  /**
   * Register the component `view` for a pattern, such as "runs/:run/tasks/:task". It gets the named
   * parts, and the filters after `?` as `params`.
   */
  const route = (pattern, view) => {
    const names = [];
    const parts = pattern.split("/").map((part) => {
      if (!part.startsWith(":")) return part;
      names.push(part.slice(1));
      return "([^/]+)";
    });
    routes.push({ shape: new RegExp(`^${parts.join("/")}$`), names, view });
  };

  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // an incomplete percent code in a typed address
    }
  };

  /** Kinds of pages that an exported file lacks, such as "search", or "groups/" for single groups.
   * The parts of an address alternate between kinds and ids. */
  const { home, without: lacking = "" } = document.documentElement.dataset;
  const without = lacking.split(" ").filter(Boolean);
  const lacks = (...parts) =>
    parts.some((part, i) => i % 2 === 0 && (without.includes(part) || (i + 1 < parts.length && without.includes(`${part}/`))));

  /** The link to a page: `link(["runs", "a b"], { page: 2 })` is "#/runs/a%20b?page=2". */
  const link = (parts, params = {}) => {
    if (lacks(...parts)) return undefined;
    const path = parts.map((part) => coevo.encode(part)).join("/");
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(params)) {
      if (value !== "" && value !== null && value !== undefined && value !== false) {
        query.set(name, value === true ? "1" : value);
      }
    }
    const text = query.toString();
    return `#/${path}${text && `?${text}`}`;
  };

  /** The page of a hash: its parts, its filters, and the view with its named parts. */
  const placeOf = (hash) => {
    const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const bare = path.replace(/\/+$/, "");
    const params = Object.fromEntries(new URLSearchParams(query));
    const place = { hash, path: bare, parts: bare ? bare.split("/").map(decode) : [], params };
    for (const { shape, names, view } of routes) {
      const found = shape.exec(bare);
      if (found) {
        const named = Object.fromEntries(names.map((name, i) => [name, decode(found[i + 1])]));
        return { ...place, view, named };
      }
    }
    return { ...place, view: null, named: {} };
  };

  if (home && !window.location.hash) window.history.replaceState(null, "", `#/${home}`);
  const listeners = new Set();
  let shown = window.location.hash;
  let here = null;

  // Scroll positions of the history entries. A new page begins at the top; going back restores the
  // position as soon as the page is long enough again.
  window.history.scrollRestoration = "manual";
  const scrolls = new Map();
  let entry = 0;

  /** Number the current history entry if it has no number, and return true if it is new. */
  const enter = () => {
    const known = window.history.state?.coevo;
    entry = known ?? Date.now() + Math.random();
    if (known === undefined) window.history.replaceState({ coevo: entry }, "");
    return known === undefined;
  };
  enter();
  const PATIENCE_MS = 3000;
  let moved = false;
  for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    window.addEventListener(kind, () => (moved = true), { passive: true });
  }

  /** Restore the scroll position while the page grows, until the user scrolls. */
  const scrollBack = (of, to, until) => {
    if (entry !== of || moved || performance.now() > until) return;
    const room = document.documentElement.scrollHeight - window.innerHeight;
    if (room >= to && Math.abs(window.scrollY - to) > 1) window.scrollTo(0, to);
    requestAnimationFrame(() => scrollBack(of, to, until));
  };

  const changed = () => {
    if (window.location.hash === shown) return;
    const before = here;
    scrolls.set(entry, window.scrollY); // the old page is still drawn
    shown = window.location.hash;
    here = placeOf(shown);
    const fresh = enter();
    const to = scrolls.get(entry) || 0;
    for (const listener of listeners) listener(here);
    moved = false;
    if (!fresh) scrollBack(entry, to, performance.now() + PATIENCE_MS);
    else if (here.path !== before?.path) window.scrollTo(0, 0);
  };
  window.addEventListener("hashchange", changed);
  window.addEventListener("popstate", changed);

  // "#signals" is a section of the current page, not another page.
  document.addEventListener("click", (event) => {
    const anchor = event.target instanceof Element && event.target.closest("a[href^='#']:not([href^='#/'])");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const node = document.getElementById(anchor.getAttribute("href").slice(1));
    if (!node) return;
    if (!node.hasAttribute("tabindex")) node.setAttribute("tabindex", "-1");
    node.scrollIntoView();
    node.focus({ preventScroll: true });
  });

  /** Go to an address; with `replace`, without a new history entry. */
  const go = (href, { replace = false } = {}) => {
    if (!replace) {
      window.location.hash = href;
      return;
    }
    window.history.replaceState(window.history.state, "", href);
    changed();
  };

  /** The current page's address; components that use it are redrawn when it changes. */
  const usePlace = () => {
    const [place, setPlace] = useState(() => (here = here || placeOf(window.location.hash)));
    useEffect(() => {
      listeners.add(setPlace);
      return () => listeners.delete(setPlace);
    }, []);
    return place;
  };

  /** Change some filters; "" removes one. Changes other than the page number go to the first page. */
  const setParams = (changes, { replace = true } = {}) => {
    const place = placeOf(window.location.hash);
    const kept = "page" in changes ? place.params : { ...place.params, page: "" };
    go(link(place.parts, { ...kept, ...changes }), { replace });
  };

  /** The current filters, which the page may not show yet. */
  const paramsNow = () => placeOf(window.location.hash).params;

  Object.assign(coevo, { route, lacks, link, go, usePlace, setParams, paramsNow });
})();
