// The frame of every page: location, search, theme, help.
"use strict";

(() => {
  const { html, cls, useState, useEffect, useRef, useKeys, usePlace, link, Words } = coevo;

  const THEMES = { system: "system", light: "light", dark: "dark" };

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
    useKeys([{ key: "t", does: "theme: system, light or dark", run: turn }]);
    return html`<button type="button" class="icon" onClick=${turn}
      aria-label=${`Theme: ${THEMES[theme]}. Switch to ${THEMES[next]}.`} title=${`Theme: ${THEMES[theme]} (t)`}>
      <span aria-hidden="true">${{ system: "◐", light: "☀", dark: "☾" }[theme]}</span></button>`;
  };

  const KEY_WORDS = { " ": "space", Escape: "esc", ArrowLeft: "←", ArrowRight: "→", Enter: "enter" };

  /** The list of this page's keys. */
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
          <div><dt><kbd>enter</kbd></dt><dd>open the focused row</dd></div>
          <div><dt><kbd>alt</kbd> <kbd>←</kbd></dt><dd>previous page</dd></div>
        </dl>
        <p class="soft">Every view has a link: the address contains the page and its filters.</p>
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
        does: "leave an input field",
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

  /** Tabs of a run: the part of the address after the run, and the label. */
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
   * @param crumbs breadcrumbs: pairs of a label and an address.
   * @param run id of the page's run, whose tabs are shown unless the run does not exist.
   * @param tab name of the selected tab.
   */
  const Page = ({ title, crumbs = [], run, tab = "", actions, children, wide }) => {
    const heading = useRef(null);
    const place = usePlace();
    const missing = coevo.useMissing(run);
    useEffect(() => {
      document.title = `${coevo.plain(title, 80)} · coevo view`;
    }, [title]);
    useEffect(() => {
      // A screen reader continues at the new page's title, unless the user is typing.
      if (place.path && !coevo.inField(document.activeElement)) heading.current?.focus({ preventScroll: true });
    }, [place.path]);
    return html`
      ${run !== undefined && !missing && html`<${RunTabs} run=${run} now=${tab} />`}
      <main id="main" class=${cls({ wide })}>
        ${crumbs.length > 0 &&
        html`<nav class="crumbs" aria-label="Breadcrumbs"><ol>${crumbs.map(
          ([words, href]) => html`<li key=${href}><a href=${href}><${Words} text=${words} most=${48} /></a></li>`,
        )}</ol></nav>`}
        <div class="page-head"><h1 ref=${heading} tabindex="-1"><${Words} text=${title} most=${240} /></h1>
          <div class="actions">${actions}<${coevo.CopyLink} /></div></div>
        ${children}
      </main>`;
  };

  /** The state of the connection to the viewer's process. */
  const Live = () => {
    const state = coevo.useLive();
    if (!state) return null;
    const words = { on: "Connected", off: "Not connected", still: "Exported file" }[state];
    const why = {
      on: "Pages update while runs train.",
      off: "The viewer is not running. Start `coevo view` again, then reload this page.",
      still: "This exported file shows the data at the time of the export.",
    }[state];
    return html`<span class=${`live ${state}`} title=${why} role="status"><i aria-hidden="true"></i>${words}</span>`;
  };

  const Shell = () => {
    const place = usePlace();
    const [help, setHelp] = useState(null);
    useKeys([{ key: "?", does: "show these keys", run: () => setHelp(coevo.keysNow()) }]);
    useKeys([
      { key: "g", does: "all runs", run: () => coevo.go("#/") },
    ]);
    const run = place.parts[0] === "runs" ? place.parts[1] : place.params.run;
    const missing = coevo.useMissing(run);
    const View = place.view || coevo.views.NotFound;
    return html`
      <a class="skip" href="#main">Skip to content</a>
      <header class="top">
        <a class="brand" href="#/"><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path d="M2 14V9h5V5h7" class="brand-line" /><circle cx="13" cy="4" r="2.6" class="brand-dot" /></svg>coevo</a>
        ${run && !missing && html`<a class="top-run" href=${link(["runs", run])}><${Words} text=${run} most=${32} /></a>`}
        <span class="grow"></span>
        <${Live} />
        ${!coevo.lacks("search") && html`<${SearchBox} run=${run} />`}
        <${ThemeSwitch} />
        <button type="button" class="icon" aria-label="Keys" title="Keys (?)" onClick=${() => setHelp(coevo.keysNow())}>?</button>
      </header>
      <${View} key=${place.path} ...${place.named} params=${place.params} />
      ${help && html`<${Help} keys=${help} onClose=${() => setHelp(null)} />`}`;
  };

  coevo.views.NotFound = () => html`<${Page} title="Page not found">
    <${coevo.Empty} title=${`There is no page ${window.location.hash || "at this address"}.`}>
      The link may come from an older version, or point to a deleted run. <a href="#/">All runs</a>
    <//>
  <//>`;

  Object.assign(coevo, { Page, Shell, ThemeSwitch, Help });
})();
