// The base of all scripts of the viewer: the global `coevo`, with `html` (htm with Preact) and Preact's
// hooks. The scripts are not modules, so that an exported file opens from file://.
// Values in `html` become text nodes or properties, never markup.
"use strict";

(() => {
  const coevo = (window.coevo = window.coevo || {});
  const { h, render, Fragment, Component } = window.preact;
  Object.assign(coevo, window.preactHooks, { h, render, Fragment, Component });

  // In every text, invisible characters are replaced by marks (text.js), or by their names in places
  // without markup.
  const BARE = new Set(["option", "title", "textarea"]);
  const marked = (child) =>
    typeof child === "string" ? coevo.visible(child) : Array.isArray(child) ? child.map(marked) : child;
  const named = (child) => (typeof child === "string" ? coevo.plain(child) : child);
  const told = (props) => {
    for (const name of ["title", "aria-label", "placeholder", "data-label"]) {
      if (typeof props?.[name] === "string") props[name] = coevo.plain(props[name], 2000);
    }
    return props;
  };

  coevo.html = window.htm.bind((type, props, ...children) =>
    typeof type === "string"
      ? h(type, told(props), ...children.map(BARE.has(type) ? named : marked))
      : h(type, props, ...children),
  );
  // The global name of htm's own bundle with Preact, which the charts use.
  window.htmPreact = { ...window.preactHooks, h, render, Fragment, Component, html: coevo.html };
  coevo.views = {};

  /** The keys with a truthy value as class names: `cls("tag", { on: true })` is "tag on". */
  coevo.cls = (...parts) =>
    parts
      .flatMap((part) =>
        part && typeof part === "object"
          ? Object.keys(part).filter((name) => part[name])
          : part || [],
      )
      .join(" ");

  /** A part of an address; invalid Unicode is replaced, because browsers reject it. */
  coevo.encode = (part) => encodeURIComponent(String(part).toWellFormed());

  /** A value in the browser's storage under `coevo.NAME`, if the browser allows it. */
  coevo.kept = (name, fallback) => {
    try {
      const found = window.localStorage.getItem(`coevo.${name}`);
      return found === null ? fallback : JSON.parse(found);
    } catch {
      return fallback;
    }
  };
  coevo.keep = (name, value) => {
    try {
      window.localStorage.setItem(`coevo.${name}`, JSON.stringify(value));
    } catch {
      // Storage is off, as on some file:// pages: the choice holds until the page is closed.
    }
  };

  /** `useState` with a value that is kept in the browser's storage. */
  coevo.useKept = (name, fallback) => {
    const [value, set] = coevo.useState(() => coevo.kept(name, fallback));
    return [
      value,
      (next) => {
        coevo.keep(name, next);
        set(next);
      },
    ];
  };
})();
