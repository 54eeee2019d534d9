// BFCL: a conversation with function calls, beside the documentation of the functions.
"use strict";

(() => {
  const { html, cls, play, useState, useRef } = coevo;

  /** Parse the text typed for a parameter; throw an error with a message for the user. */
  const valueOf = (parameter, typed) => {
    const { type, name } = parameter;
    const text = typed.trim();
    if (type === "string") return typed;
    if (type === "boolean") return text === "true";
    if (type === "integer" || type === "number") {
      const number = Number(text);
      if (!Number.isFinite(number) || (type === "integer" && !Number.isInteger(number))) {
        throw new Error(`${name} must be ${type === "integer" ? "a whole number" : "a number"}.`);
      }
      return number;
    }
    try {
      return JSON.parse(text);
    } catch {
      if (type === "array of string" && !/^[[{"]/.test(text)) return text.split(",").map((part) => part.trim());
      throw new Error(`${name} must be JSON, such as ${type.startsWith("array") ? '["a", "b"]' : '{"a": 1}'}.`);
    }
  };

  /** The message that calls a function, in the format of a language model. */
  const messageOf = (name, given) => {
    const call = JSON.stringify({ name, arguments: given }).replaceAll("</", "\\u003c/");
    return `<tool_call>\n${call}\n</tool_call>`;
  };

  const Field = ({ of, value, onInput }) => {
    const { name, type, about, required, listed } = of;
    const fallback = of.default;
    const set = (event) => onInput(event.target.value);
    const choices = listed.length ? listed : type === "boolean" ? ["true", "false"] : null;
    const rest = [type, !required && (fallback ? `default ${fallback}` : "optional")].filter(Boolean).join(", ");
    return html`<label class="field param">
      <span><b class="mono">${name}</b> <span class="soft">${rest}</span></span>
      ${choices
        ? html`<select name=${name} onChange=${set}>
            <option value="" selected=${!value}>${required ? "choose" : "omit"}</option>
            ${choices.map((one) => {
              const plain = listed.length && type === "string" ? JSON.parse(one) : one;
              return html`<option value=${plain} selected=${value === String(plain)}>${String(plain)}</option>`;
            })}
          </select>`
        : html`<input name=${name} value=${value} onInput=${set} autocomplete="off" spellcheck=${false} required=${required && type !== "string"} />`}
      ${about && html`<${coevo.Prose} class="soft small" text=${about} most=${600} />`}
    </label>`;
  };

  const ToolForm = ({ tool, act, busy }) => {
    const [values, setValues] = useState({});
    const [wrong, setWrong] = useState("");
    const send = (event) => {
      event.preventDefault();
      const given = {};
      try {
        for (const parameter of tool.parameters) {
          const typed = values[parameter.name] ?? "";
          if (typed === "" && !parameter.required) continue;
          if (typed === "" && parameter.type !== "string") throw new Error(`${parameter.name} is required.`);
          given[parameter.name] = valueOf(parameter, typed);
        }
      } catch (error) {
        setWrong(error.message);
        return;
      }
      setWrong("");
      act(messageOf(tool.name, given));
    };
    return html`<form class="tool-form" onSubmit=${send} aria-label=${`Call ${tool.name}`}>
      <${coevo.Prose} text=${tool.about} most=${1200} />
      ${tool.parameters.map(
        (one) => html`<${Field} key=${one.name} of=${one} value=${values[one.name] ?? ""}
          onInput=${(value) => setValues((before) => ({ ...before, [one.name]: value }))} />`,
      )}
      ${wrong && html`<p class="bad-words" role="alert">${wrong}</p>`}
      <div><button class="primary" disabled=${busy}>Call ${tool.name}</button></div>
    </form>`;
  };

  const Tools = ({ tools, act, busy }) => {
    const [search, setSearch] = useState("");
    const [open, setOpen] = useState("");
    const box = useRef(null);
    coevo.useKeys([{ key: "f", does: "find a function", run: () => box.current.focus() }]);
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = tools.filter(({ name, about }) => words.every((word) => `${name} ${about}`.toLowerCase().includes(word)));
    return html`<section class="tools" aria-label="Functions">
      <div class="section-head"><h2>Functions</h2><span class="soft small num">${shown.length} of ${tools.length}</span></div>
      <input ref=${box} type="search" class="full" aria-label="Find a function" placeholder="Find a function"
        value=${search} onInput=${(event) => setSearch(event.target.value)} autocomplete="off" />
      <ul class="plain tool-list">
        ${shown.map(
          (tool) => html`<li key=${tool.name} class=${cls({ open: open === tool.name })}>
            <button type="button" class="tool-name mono" aria-expanded=${open === tool.name ? "true" : "false"}
              onClick=${() => setOpen(open === tool.name ? "" : tool.name)}>${tool.signature}</button>
            ${open === tool.name && html`<${ToolForm} tool=${tool} act=${act} busy=${busy} />`}
          </li>`,
        )}
      </ul>
    </section>`;
  };

  const Say = ({ act, busy }) => {
    const [typed, setTyped] = useState("");
    const box = useRef(null);
    const take = play.taking(act, typed, setTyped);
    coevo.useKeys([{ key: "/", does: "focus the text field", run: () => box.current.focus() }]);
    const send = (event) => {
      if (event) event.preventDefault();
      if (typed.trim() && !busy) take(typed);
    };
    const onKeyDown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    };
    return html`<form class="say" onSubmit=${send}>
      <textarea ref=${box} name="action" rows="2" value=${typed} onInput=${(event) => setTyped(event.target.value)} onKeyDown=${onKeyDown}
        aria-label="Function calls, or a message that ends the turn" placeholder="cd(folder='documents'), ls()" spellcheck=${false} maxlength="20000"></textarea>
      <div class="say-buttons">
        <button class="primary" disabled=${busy || !typed.trim()}>Send</button>
        <button type="button" disabled=${busy} onClick=${() => take(`end ${typed}`)} title="Sends the text in the field, or “Done.” if it is empty">End the turn</button>
      </div>
      <p class="soft small">Function calls do not end the turn. To end the turn, press “End the turn”. Then the user continues or the episode ends.</p>
    </form>`;
  };

  const RESULT = /<tool_response>\n([\s\S]*?)\n<\/tool_response>\n?/;

  /** The env's response: results of calls, or the user's message. */
  const Told = ({ text, most, ...props }) => html`<div ...${props}>${text
    .split(RESULT) // results have odd indices
    .map((part, i) => part && html`<p class="speaker soft small">${i % 2 ? "Result" : "User"}</p><${coevo.Prose} text=${part} most=${most} />`)}</div>`;

  play.boards.bfcl = ({ state, act, busy, over }) => html`<div class=${cls("board", { "two-columns": !over })}>
    <div>
      <${play.Transcript} state=${state} Told=${Told} />
      ${!over && html`<${Say} act=${act} busy=${busy} />`}
    </div>
    ${!over && html`<${Tools} tools=${state.tools || []} act=${act} busy=${busy} />`}
  </div>`;
})();
