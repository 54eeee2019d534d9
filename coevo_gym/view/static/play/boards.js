// The default board and shared parts of boards. A board gets the state of an episode, `act(text)`,
// and a flag for a pending request.
"use strict";

(() => {
  const { html, cls, play, useState, useRef, useEffect, useMemo } = coevo;

  /** All steps so far with their results: `{ action, result }`. */
  play.stepsOf = (state) =>
    state.past.map(({ action }, i) => ({
      action,
      result: i + 1 < state.past.length ? state.past[i + 1].observation : state.observation,
    }));

  /**
   * Take an action, then clear its input field. A refused action, and text typed meanwhile, stay in
   * the field.
   */
  play.taking = (act, typed, setTyped) => async (action) => {
    const told = await act(action);
    if (told && !told.refusal && !told.fault) setTyped((now) => (now === typed ? "" : now));
  };

  /** Keep the end of a growing list in view. */
  play.useEnd = (length) => {
    const box = useRef(null);
    useEffect(() => {
      if (box.current) box.current.scrollTop = box.current.scrollHeight;
    }, [length]);
    return box;
  };

  /** The first page without the line that repeats the task. */
  const withoutTask = (text, task) => {
    const lines = text.split("\n");
    const rest = lines.filter((line) => !/^Your task is to: /.test(line) || !line.includes(task));
    return rest.length ? rest.join("\n").trim() : text;
  };

  /** The history of the episode: the first page, then each action with its result. */
  play.Transcript = ({ state, name = "mono", first = true, Told = coevo.Prose }) => {
    const steps = play.stepsOf(state);
    const box = play.useEnd(steps.length);
    const opening = withoutTask(state.past.length ? state.past[0].observation : state.observation, state.instruction);
    return html`<div class="transcript" ref=${box} role="log" aria-label="History" tabindex="0">
      ${first && html`<${Told} class=${name} text=${opening} most=${8000} />`}
      ${steps.map(
        ({ action, result }, i) => html`<div class="turn" key=${i}>
          <div class="did"><span class="turn-number num">${i + 1}</span><${coevo.Prose} class="mono" text=${action} most=${2000} /></div>
          <${Told} class=${cls(name, "led")} text=${result} most=${4000} />
        </div>`,
      )}
    </div>`;
  };

  /**
   * Actions as buttons, and a text field that filters them. Enter takes the only remaining action,
   * or else the text itself.
   */
  play.Choices = ({ state, act, busy, label = "Type an action, or part of one" }) => {
    const [typed, setTyped] = useState("");
    const box = useRef(null);
    const list = useRef(null);
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = useMemo(
      () => state.admissible.filter((one) => words.every((word) => one.toLowerCase().includes(word))),
      [state.admissible, typed],
    );
    const take = play.taking(act, typed, setTyped);
    useEffect(() => {
      if (box.current && !busy) box.current.focus({ preventScroll: true });
    }, [state.step]);
    coevo.useKeys([{ key: "/", does: "focus the text field", run: () => box.current.focus() }]);
    const send = (event) => {
      event.preventDefault();
      const exact = state.admissible.find((one) => one.toLowerCase() === typed.trim().toLowerCase());
      const one = exact || (words.length && shown.length === 1 ? shown[0] : typed.trim());
      if (one) take(one);
    };
    const move = (event, by) => {
      const buttons = [...list.current.querySelectorAll("button")];
      const at = buttons.indexOf(document.activeElement) + by;
      event.preventDefault();
      if (at < 0) box.current.focus();
      else if (buttons[at]) buttons[at].focus();
    };
    const onKeyDown = (event) => {
      if (event.key === "ArrowDown") move(event, 1);
      if (event.key === "ArrowUp") move(event, -1);
    };
    return html`<div class="choices" onKeyDown=${onKeyDown}>
      <form class="typed" onSubmit=${send}>
        <input ref=${box} type="text" name="action" value=${typed} onInput=${(event) => setTyped(event.target.value)}
          aria-label=${label} placeholder=${label} autocomplete="off" spellcheck=${false} maxlength="20000" />
        <button class="primary" disabled=${busy || !typed.trim()}>Submit</button>
      </form>
      ${state.admissible.length > 0 &&
      html`<p class="soft small" role="status">${shown.length === state.admissible.length
        ? `${shown.length} possible actions`
        : `${shown.length} of ${state.admissible.length} possible actions`}</p>`}
      <div class="chips" ref=${list} role="group" aria-label="Possible actions">
        ${shown.slice(0, 300).map(
          (one) => html`<button type="button" key=${one} disabled=${busy} onClick=${() => take(one)}><${coevo.Words} text=${one} most=${200} /></button>`,
        )}
        ${shown.length > 300 && html`<span class="soft">and ${shown.length - 300} more; type to filter</span>`}
      </div>
    </div>`;
  };

  /** The default board: text, possible actions and a text field. */
  play.TextBoard = ({ state, act, busy, over }) => html`<div class="board">
    <${play.Transcript} state=${state} name="words-of-world" />
    ${!over && html`<${play.Choices} state=${state} act=${act} busy=${busy} />`}
  </div>`;
})();
