// The board of an episode: the history with the current page, the possible actions, and documents.
"use strict";

(() => {
  const { html, play, useState, useRef, useEffect, useMemo } = coevo;
  const LONG = 800;
  const MOST = 300;

  /** The pages so far, each below the action that led to it. Long earlier pages are folded. */
  const History = ({ state, act, busy, over }) => {
    const end = useRef(null);
    useEffect(() => {
      if (state.step) end.current.scrollIntoView({ block: "nearest" });
    }, [state.step]);
    const pages = [...state.past, state];
    return html`<div role="log" aria-label="History">${pages.map(({ observation, page }, i) => {
      const now = i === state.past.length;
      const playing = now && !over ? { choices: state.choices, act, busy } : undefined;
      const action = now ? "" : state.past[i].action;
      const shown = html`<${coevo.BehindPage} page=${page} text=${observation} action=${action} playing=${playing} />`;
      return html`<div class="turn" key=${i} ref=${now ? end : null}>
        ${i > 0 && html`<div class="did"><span class="turn-number num">${i}</span><${coevo.Prose} class="mono" text=${state.past[i - 1].action} most=${2000} /></div>`}
        ${now || observation.length < LONG ? shown : html`<details class="more"><summary>Page ${i + 1}</summary>${shown}</details>`}
      </div>`;
    })}</div>`;
  };

  /**
   * A text field and the possible actions, which the text filters. Enter takes the only remaining
   * action, or else the text itself. In code, Enter begins a line and Ctrl-Enter runs the code.
   */
  const Actions = ({ state, act, busy }) => {
    const [typed, setTyped] = useState("");
    const box = useRef(null);
    const list = useRef(null);
    const code = state.page.action === "code";
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = useMemo(
      () => state.choices.filter((one) => words.every((word) => one.toLowerCase().includes(word))),
      [state.choices, typed],
    );
    useEffect(() => {
      if (box.current && !busy) box.current.focus({ preventScroll: true });
    }, [state.step]);
    coevo.useKeys([{ key: "/", does: "focus the text field", run: () => box.current.focus() }]);
    /** Take an action, then clear the field. A refused action, and text typed meanwhile, stay. */
    const take = async (action) => {
      const told = await act(action);
      if (told && !told.refusal && !told.fault) setTyped((now) => (now === typed ? "" : now));
    };
    const send = (event) => {
      event.preventDefault();
      const text = typed.trim();
      const exact = state.choices.find((one) => one.toLowerCase() === text.toLowerCase());
      const only = state.choices.length > 1 && words.length && shown.length === 1 ? shown[0] : typed;
      if (text && !busy) take(exact || only);
    };
    const move = (event, by) => {
      const buttons = [...list.current.querySelectorAll("button")];
      const at = buttons.indexOf(document.activeElement) + by;
      event.preventDefault();
      if (at < 0) box.current.focus();
      else if (buttons[at]) buttons[at].focus();
    };
    const onKeyDown = (event) => {
      const sends = code ? event.ctrlKey || event.metaKey : !event.shiftKey;
      if (event.key === "Enter" && event.target === box.current && sends && !event.isComposing) send(event);
      if (event.key === "ArrowDown" && shown.length) move(event, 1);
      if (event.key === "ArrowUp" && event.target !== box.current) move(event, -1);
    };
    return html`<div onKeyDown=${onKeyDown}>
      <form class="typed" onSubmit=${send}>
        <textarea ref=${box} class="mono" name="action" rows=${code ? 8 : 2} value=${typed} onInput=${(event) => setTyped(event.target.value)}
          aria-label="Action" placeholder=${state.choices.length > 1 ? "Type an action, or part of one" : "Type an action"} spellcheck=${false} autocapitalize="off" autocomplete="off" maxlength="20000"></textarea>
        <button class="primary" disabled=${busy || !typed.trim()}>Submit${code && html` <kbd>Ctrl</kbd> <kbd>Enter</kbd>`}</button>
      </form>
      ${state.choices.length > 0 && html`<p class="soft small" role="status">${shown.length === state.choices.length ? "" : `${shown.length} of `}${coevo.plural(state.choices.length, "possible action")}</p>`}
      <div class="chips" ref=${list} role="group" aria-label="Possible actions">
        ${shown.slice(0, MOST).map(
          (one) => html`<button type="button" key=${one} disabled=${busy} onClick=${() => take(one)}><${coevo.Words} text=${one} most=${200} /></button>`,
        )}
        ${shown.length > MOST && html`<span class="soft">and ${shown.length - MOST} more; type to filter</span>`}
      </div>
    </div>`;
  };

  const Documents = ({ documents }) => html`<section class="documents" aria-label="Documents">${documents.map(
    ([title, text]) => html`<details class="more" key=${title}><summary><${coevo.Words} text=${title} most=${120} /></summary><${coevo.Prose} class="small" text=${text} most=${6000} /></details>`,
  )}</section>`;

  play.Board = ({ state, act, busy, over }) =>
    over
      ? html`<${History} state=${state} act=${act} busy=${busy} over />`
      : html`<div class="board">
          <${History} state=${state} act=${act} busy=${busy} />
          <div class="panel"><${Actions} state=${state} act=${act} busy=${busy} /><${Documents} documents=${state.documents} /></div>
        </div>`;
})();
