// AppWorld: a code editor, and the documentation of the apps as far as it was requested.
"use strict";

(() => {
  const { html, cls, play, useState, useRef, useEffect } = coevo;
  const STEP = "    ";

  /**
   * The edit for Tab: `[from, to, by, start, end]`, the replaced range, its new text and the new
   * selection. Selected lines are indented or, with `back`, dedented; without a selection, spaces are
   * inserted up to the next stop.
   */
  const indented = (text, from, to, back) => {
    const start = text.lastIndexOf("\n", from - 1) + 1;
    if (from === to && !back) {
      const blanks = STEP.slice((from - start) % STEP.length);
      return [from, to, blanks, from + blanks.length, from + blanks.length];
    }
    const end = to > from && text[to - 1] === "\n" ? to - 1 : to;
    const lines = text.slice(start, end).split("\n");
    const moved = lines.map((line) => (back ? line.replace(/^ {1,4}/, "") : line && STEP + line));
    const first = moved[0].length - lines[0].length;
    const grown = moved.join("\n").length - (end - start);
    return [start, end, moved.join("\n"), Math.max(start, from + first), Math.max(start, to + grown)];
  };

  /** The edit for Enter: keep the indentation of the line, and indent after a colon. */
  const newLine = (text, from, to) => {
    const line = text.slice(text.lastIndexOf("\n", from - 1) + 1, from);
    const added = `\n${/^ */.exec(line)[0]}${/:\s*$/.test(line) ? STEP : ""}`;
    return [from, to, added, from + added.length, from + added.length];
  };

  const Editor = ({ code, setCode, run, busy, box }) => {
    const onKeyDown = (event) => {
      const area = event.target;
      const { selectionStart, selectionEnd, value } = area;
      // Change the text at once, because the next key may arrive before the page is drawn.
      const put = ([from, to, by, start, end]) => {
        event.preventDefault();
        area.setSelectionRange(from, to);
        // Insert as typed text, so that the browser can undo it, if it supports that.
        if (by === "" || !document.execCommand("insertText", false, by)) {
          area.setRangeText(by, from, to, "end");
          setCode(area.value);
        }
        area.setSelectionRange(start, end);
      };
      const bare = !event.ctrlKey && !event.altKey && !event.metaKey && !event.isComposing;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        run(value);
      } else if (event.key === "Tab" && bare) {
        put(indented(value, selectionStart, selectionEnd, event.shiftKey));
      } else if (event.key === "Enter" && bare && !event.shiftKey) {
        put(newLine(value, selectionStart, selectionEnd));
      } else if (event.key === "Escape") {
        area.blur(); // so that Tab moves the focus again
      }
    };
    return html`<textarea ref=${box} class="editor mono" name="code" rows=${Math.min(24, Math.max(6, code.split("\n").length + 1))}
      value=${code} onInput=${(event) => setCode(event.target.value)} onKeyDown=${onKeyDown}
      aria-label="Python code. Tab indents; press Escape before Tab to leave the editor." placeholder="print(apis.supervisor.show_profile())"
      spellcheck=${false} autocapitalize="off" autocomplete="off" disabled=${busy} maxlength="20000"></textarea>`;
  };

  const ask = {
    app: (app) => `print(apis.api_docs.show_api_descriptions(app_name='${app}'))`,
    api: (app, api) => `print(apis.api_docs.show_api_doc(app_name='${app}', api_name='${api}'))`,
  };

  const typeOf = ({ type, required, default: fallback }) =>
    [type, required ? "" : fallback === null || fallback === undefined ? "optional" : `default ${JSON.stringify(fallback)}`].filter(Boolean).join(", ");

  /** The required arguments of a call, if its documentation is known: "username=, password=". */
  const neededOf = (doc) =>
    (doc && Array.isArray(doc.parameters) ? doc.parameters : []).filter(({ required }) => required).map(({ name }) => `${name}=`).join(", ");

  /** The documentation of an API: description, parameters, result. */
  const ApiDoc = ({ doc, label }) => {
    const { description, parameters, response_schemas: answers } = doc;
    if (!Array.isArray(parameters)) return html`<${coevo.Facts} value=${doc} label=${label} most=${60} />`;
    return html`<div aria-label=${label}>
      <${coevo.Prose} text=${description} most=${1200} />
      <ul class="plain">${parameters.map(
        (one) => html`<li key=${one.name} class="param"><b class="mono">${one.name}</b> <span class="soft small">${typeOf(one)}</span>
          <${coevo.Prose} class="soft" text=${[one.description, ...(one.constraints || [])].join(" ")} most=${600} /></li>`,
      )}</ul>
      ${answers && answers.success && html`<p class="soft small">Returns</p><${coevo.Prose} class="mono" text=${JSON.stringify(answers.success, null, 1)} most=${1500} />`}
    </div>`;
  };

  const Docs = ({ docs, run, busy, put }) => {
    const [app, setApp] = useState("");
    const [api, setApi] = useState("");
    const [search, setSearch] = useState("");
    const listed = docs.apis[app];
    const known = docs.docs[`${app}.${api}`];
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = (listed || []).filter(({ name, description }) =>
      words.every((word) => `${name} ${description}`.toLowerCase().includes(word)),
    );
    return html`<section class="tools" aria-label="Documentation of the apps">
      <div class="section-head"><h2>Apps</h2></div>
      <div class="chips">${docs.apps.map(
        (name) => html`<button type="button" key=${name} aria-pressed=${app === name ? "true" : "false"} class=${cls({ chosen: app === name })}
          onClick=${() => { setApp(name); setApi(""); setSearch(""); }}>${name}</button>`,
      )}</div>
      ${!app && html`<p class="soft small">Choose an app to see its APIs. Requesting documentation takes a step, as it does for an agent.</p>`}
      ${app && !listed && html`<p><button type="button" disabled=${busy} onClick=${() => run(ask.app(app))}>List the APIs of ${app}</button> <span class="soft small">takes a step</span></p>`}
      ${listed && html`<input type="search" class="full" aria-label="Find an API" placeholder=${`Find among ${listed.length} APIs`} value=${search} onInput=${(event) => setSearch(event.target.value)} autocomplete="off" />`}
      <ul class="plain tool-list">${shown.map(
        ({ name, description }) => html`<li key=${name} class=${cls({ open: api === name })}>
          <button type="button" class="tool-name" aria-expanded=${api === name ? "true" : "false"} onClick=${() => setApi(api === name ? "" : name)}>
            <span class="mono">${name}</span> <span class="soft small"><${coevo.Words} text=${description} most=${160} /></span></button>
          ${api === name && html`<div class="tool-form">
            ${known
              ? html`<${ApiDoc} doc=${known} label=${`${app}.${name}`} />`
              : html`<p><button type="button" disabled=${busy} onClick=${() => run(ask.api(app, name))}>Show the documentation</button> <span class="soft small">takes a step</span></p>`}
            <button type="button" class="link" onClick=${() => put(`apis.${app}.${name}(${neededOf(known)})`)}>Insert a call</button>
          </div>`}
        </li>`,
      )}</ul>
    </section>`;
  };

  play.boards.appworld = ({ state, act, busy, over }) => {
    const [code, setCode] = useState("");
    const box = useRef(null);
    useEffect(() => {
      if (box.current) box.current.focus({ preventScroll: true });
    }, [state.step]);
    coevo.useKeys([{ key: "/", does: "focus the editor", run: () => box.current.focus() }]);
    const run = (text = code) => {
      if (!text.trim() || busy) return;
      play.taking(act, text, setCode)(text);
    };
    const put = (text) => {
      setCode(code && !code.endsWith("\n") ? `${code}\n${text}` : code + text);
      box.current.focus();
    };
    return html`<div class=${cls("board", { "two-columns": !over })}>
      <div>
        <${play.Transcript} state=${state} />
        ${!over && html`<div class="say">
          <${Editor} code=${code} setCode=${setCode} run=${run} busy=${busy} box=${box} />
          <div class="say-buttons">
            <button type="button" class="primary" disabled=${busy || !code.trim()} onClick=${() => run()}>Run <kbd>Ctrl</kbd> <kbd>Enter</kbd></button>
            <button type="button" onClick=${() => put("apis.supervisor.complete_task()")}>Insert complete_task</button>
          </div>
          <p class="soft small">Variables persist between steps. <code>apis.supervisor.complete_task(answer=…)</code> ends the episode.</p>
        </div>`}
      </div>
      ${!over && state.docs && html`<${Docs} docs=${state.docs} run=${run} busy=${busy} put=${put} />`}
    </div>`;
  };
})();
