// What is around every page: where one is, search, light or dark, help.
"use strict";

(() => {
  const { html, cls, useState, useEffect, useRef, useKeys, usePlace, link, Words } = coevo;

  const THEMES = { system: "as the system has it", light: "light", dark: "dark" };

  const showTheme = (theme) => {
    const root = document.documentElement;
    if (theme === "system") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
  };
  showTheme(coevo.kept("theme", "system"));

  const ThemeSwitch = () => {
    const [theme, setTheme] = coevo.useKept("theme", "system");
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(theme) + 1) % names.length];
    const turn = () => {
      showTheme(next);
      setTheme(next);
    };
    useKeys([{ key: "t", does: "light, dark, or as the system has it", run: turn }]);
    return html`<button type="button" class="icon" onClick=${turn}
      aria-label=${`Colours: ${THEMES[theme]}. Change to: ${THEMES[next]}.`} title=${`Colours: ${THEMES[theme]} (t)`}>
      <span aria-hidden="true">${{ system: "◐", light: "☀", dark: "☾" }[theme]}</span></button>`;
  };

  const KEY_WORDS = { " ": "space", Escape: "esc", ArrowLeft: "←", ArrowRight: "→", Enter: "enter" };

  /** The keys that do something on this page. */
  const Help = ({ keys, onClose }) => {
    const box = useRef(null);
    useKeys(
      [
        { key: "Escape", run: onClose },
        { key: "?", run: onClose },
      ],
      { alone: true },
    );
    useEffect(() => {
      const before = document.activeElement;
      box.current.showModal();
      return () => before && before.focus && before.focus();
    }, []);
    return html`<dialog ref=${box} class="help" aria-labelledby="help-title" onClose=${onClose}
      onClick=${(event) => event.target === box.current && onClose()}>
      <div class="help-inner">
        <div class="section-head"><h2 id="help-title">Keys</h2>
          <button type="button" class="quiet" onClick=${onClose}>Close <kbd>esc</kbd></button></div>
        <dl class="keys">${keys.map(
          ({ key, does }) => html`<div key=${key}><dt><kbd>${KEY_WORDS[key] || key}</kbd></dt><dd>${does}</dd></div>`,
        )}
          <div><dt><kbd>enter</kbd></dt><dd>open the row that has the focus</dd></div>
          <div><dt><kbd>alt</kbd> <kbd>←</kbd></dt><dd>back to where you were</dd></div>
        </dl>
        <p class="soft">Every place has a link: the address of this page leads back to it, filters included.</p>
      </div>
    </dialog>`;
  };

  const SearchBox = ({ run }) => {
    const place = usePlace();
    const field = useRef(null);
    const query = place.parts[0] === "search" ? place.params.q || "" : "";
    useEffect(() => {
      field.current.value = query;
    }, [query]);
    useKeys([
      {
        key: "/",
        does: "search tasks and trajectories",
        run: () => {
          field.current.focus();
          field.current.select();
        },
      },
      {
        key: "Escape",
        does: "leave a field",
        run: (event) => {
          if (document.activeElement === document.body) return false;
          event.target.blur();
          return true;
        },
      },
    ]);
    const search = (event) => {
      event.preventDefault();
      const words = field.current.value.trim();
      if (words) coevo.go(link(["search"], { q: words, run }));
    };
    return html`<form role="search" class="searchbox" onSubmit=${search}>
      <input ref=${field} type="search" aria-label="Search tasks and trajectories" placeholder="Search tasks and trajectories" autocomplete="off" spellcheck=${false} />
      <kbd aria-hidden="true">/</kbd>
    </form>`;
  };

  /** Pages of a run, in the order of its tabs: what the address has after the run, and a word. */
  const TABS = [
    ["", "Overview"],
    ["tasks", "Tasks"],
    ["trajectories", "Trajectories"],
    ["drafts", "Drafts and gates"],
    ["arms", "Two arms"],
  ];

  const RunTabs = ({ run, now }) => html`<nav class="tabs" aria-label="Pages of this run">
    ${TABS.filter(([name]) => !coevo.lacks("runs", run, name)).map(
      ([name, words]) => html`<a key=${name} href=${link(name ? ["runs", run, name] : ["runs", run])} aria-current=${now === name ? "page" : null}>${words}</a>`,
    )}
  </nav>`;

  /**
   * A page.
   *
   * @param crumbs pairs of words and an address, from the outermost place to this one.
   * @param run name of the run it belongs to; its tabs are shown.
   * @param tab which of those tabs it lies under.
   */
  const Page = ({ title, crumbs = [], run, tab = "", actions, children, wide }) => {
    const heading = useRef(null);
    const place = usePlace();
    useEffect(() => {
      document.title = `${coevo.plain(title, 80)} · coevo view`;
    }, [title]);
    useEffect(() => {
      // A screen reader goes on from the new page's name; who is typing already goes on with that.
      if (place.path && !coevo.inField(document.activeElement)) heading.current?.focus({ preventScroll: true });
    }, [place.path]);
    return html`
      ${run !== undefined && html`<${RunTabs} run=${run} now=${tab} />`}
      <main id="main" class=${cls({ wide })}>
        ${crumbs.length > 0 &&
        html`<nav class="crumbs" aria-label="Where this is"><ol>${crumbs.map(
          ([words, href]) => html`<li key=${href}><a href=${href}><${Words} text=${words} most=${48} /></a></li>`,
        )}</ol></nav>`}
        <div class="page-head"><h1 ref=${heading} tabindex="-1"><${Words} text=${title} most=${240} /></h1>
          <div class="actions">${actions}<${coevo.CopyLink} /></div></div>
        ${children}
      </main>`;
  };

  /** A dot that says whether a page follows a run that is under way. */
  const Live = () => {
    const state = coevo.useLive();
    if (!state) return null;
    const words = { on: "Live", off: "Not connected", still: "From a file" }[state];
    const why = {
      on: "Changes of the runs show here as they come.",
      off: "The program behind this page does not answer. Start `coevo view` again, then reload.",
      still: "An exported page: it shows what there was when it was written.",
    }[state];
    return html`<span class=${`live ${state}`} title=${why} role="status"><i aria-hidden="true"></i>${words}</span>`;
  };

  const Shell = () => {
    const place = usePlace();
    const [help, setHelp] = useState(null);
    useKeys([{ key: "?", does: "this help", run: () => setHelp(coevo.keysNow()) }]);
    useKeys([
      { key: "g", does: "all runs", run: () => coevo.go("#/") },
    ]);
    const run = place.parts[0] === "runs" ? place.parts[1] : place.params.run;
    const View = place.view || coevo.views.NotFound;
    return html`
      <a class="skip" href="#main">Skip to the page</a>
      <header class="top">
        <a class="brand" href="#/"><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M2 14V9h5V5h7" class="brand-line" /><circle cx="13" cy="4" r="2.6" class="brand-dot" /></svg>coevo</a>
        ${run && html`<a class="top-run" href=${link(["runs", run])}><${Words} text=${run} most=${32} /></a>`}
        <span class="grow"></span>
        <${Live} />
        ${!coevo.lacks("search") && html`<${SearchBox} run=${run} />`}
        <${ThemeSwitch} />
        <button type="button" class="icon" aria-label="Keys and help" title="Keys (?)" onClick=${() => setHelp(coevo.keysNow())}>?</button>
      </header>
      <${View} key=${place.path} ...${place.named} params=${place.params} />
      ${help && html`<${Help} keys=${help} onClose=${() => setHelp(null)} />`}`;
  };

  coevo.views.NotFound = () => html`<${Page} title="There is no such place">
    <${coevo.Empty} title=${`Nothing lies at ${window.location.hash || "this address"}.`}>
      The link may be of an older version, or of a run that is gone. <a href="#/">All runs</a>
    <//>
  <//>`;

  Object.assign(coevo, { Page, Shell, ThemeSwitch, Help });
})();
