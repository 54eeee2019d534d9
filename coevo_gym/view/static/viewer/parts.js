// Small components that all pages share.
"use strict";

(() => {
  const { html, cls, useState, useEffect, useRef, percent, decimal, inline, leaves } = coevo;

  /** The outcome of an episode as a mark, a word and a colour. */
  const Outcome = ({ success, score, end }) => {
    const name = success ? "good" : "bad";
    const words = success ? "solved" : "failed";
    return html`<span class=${`outcome ${name}`} title=${end ? `end reason: ${end.replaceAll("_", " ")}` : null}>
      <span aria-hidden="true">${success ? "✓" : "✗"}</span> ${words}${
        coevo.given(score) && score !== (success ? 1 : 0) && html`<span class="soft"> ${decimal(score)}</span>`
      }</span>`;
  };

  /** A kind of signal or context, by its label and in its colour. */
  const Kind = ({ kind, href, kinds }) => {
    const known = (kinds || {})[kind];
    const style = known ? { "--kind": known.colour, "--kind-dark": known.dark } : null;
    const inner = html`<span class="kind" style=${style}><${coevo.Words} text=${(known && known.label) || kind} most=${40} /></span>`;
    return href ? html`<a class="bare" href=${href}>${inner}</a>` : inner;
  };

  const Tag = ({ children, tone, title }) =>
    html`<span class=${cls("tag", tone)} title=${title}>${children}</span>`;

  /** Successes of episodes as a short bar with its numbers. */
  const Rate = ({ n, of }) => {
    if (!of) return html`<span class="soft">no episodes</span>`;
    return html`<span class="rate" title=${`${n} of ${of} episodes succeeded`}>
      <span class="rate-bar" aria-hidden="true"><i style=${{ width: `${(100 * n) / of}%` }}></i></span>
      <span class="num">${n}/${of}</span></span>`;
  };

  /** A JSON value as a list of names and values; nested values by the path to each leaf. */
  const Facts = ({ value, most = 40, label }) => {
    const numeric = (leaf) => Array.isArray(leaf) && leaf.length && leaf.every((item) => typeof item === "number");
    const all = leaves(value || {}).filter(([name]) => name !== "");
    if (!all.length) return null;
    return html`<dl class="facts" aria-label=${label}>
      ${all.slice(0, most).map(
        ([name, leaf]) => html`<div key=${name}>
          <dt><${coevo.Words} text=${name} /></dt>
          <dd>${Array.isArray(leaf) && leaf.length && !numeric(leaf)
            ? html`<ul class="plain">${leaf.slice(0, 50).map((item) => html`<li><${coevo.Prose} text=${inline(item)} most=${600} /></li>`)}</ul>`
            : html`<${coevo.Prose} text=${numeric(leaf) ? leaf.join(", ") : inline(leaf)} most=${600} />`}</dd>
        </div>`,
      )}
      ${all.length > most && html`<div><dt></dt><dd class="soft">and ${all.length - most} more</dd></div>`}
    </dl>`;
  };

  /** A message for an empty list, with a hint on what to do. */
  const Empty = ({ title, children }) => html`<div class="empty" role="note">
    <p class="empty-title">${title}</p>
    ${children && html`<div class="soft">${children}</div>`}
  </div>`;

  const Problem = ({ error, again }) => html`<div class="problem" role="alert">
    <p class="empty-title">${error.title || "Loading failed"}</p>
    <${coevo.Prose} text=${error.message || error} />
    ${error.places?.length > 0 && html`<p>Available here:</p><ul class="plain">${error.places.map((place) => html`<li key=${place}><a href=${`#/${place.split("/").map(coevo.encode).join("/")}`}><${coevo.Words} text=${place.split("/").slice(1).join("/")} most=${80} /></a></li>`)}</ul>`}
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;

  /** The result of `useData`: `children(data)` once it is loaded, or the error. */
  const Loaded = ({ of, children, lines = 6 }) => {
    if (of.error) return html`<${Problem} error=${of.error} again=${of.again} />`;
    if (of.data === undefined) {
      return html`<div class="loading" role="status" aria-label="Loading">
        ${Array.from({ length: lines }, (_, i) => html`<i style=${{ width: `${92 - ((i * 37) % 45)}%` }}></i>`)}
      </div>`;
    }
    return html`<div class=${cls("loaded", { stale: of.loading })} aria-busy=${of.loading ? "true" : null}>${children(of.data)}</div>`;
  };

  /** A group of buttons, one of which is selected. */
  const Choice = ({ label, value, options, onChange }) => html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(
      ([name, words, title]) => html`<button type="button" key=${name} title=${title}
        aria-pressed=${value === name ? "true" : "false"} onClick=${() => onChange(name)}>${words}</button>`,
    )}
  </div>`;

  /** A select field, bound to a filter in the address. */
  const Select = ({ label, name, value, options }) => html`<label class="field">
    <span>${label}</span>
    <select name=${name} onChange=${(event) => coevo.setParams({ [name]: event.target.value })}>
      <option value="" selected=${!value}>any</option>
      ${value && !options.some((option) => String(option[0]) === value) && html`<option value=${value} selected>${coevo.cut(value, 60)}</option>`}
      ${options.map(([key, words]) => html`<option value=${key} selected=${String(key) === value}>${coevo.cut(String(words), 60)}</option>`)}
    </select>
  </label>`;

  /** A search field, bound to a filter in the address with a short delay. */
  const TextFilter = ({ label = "Text", name = "q", value = "", placeholder }) => {
    const field = useRef(null);
    const timer = useRef(0);
    useEffect(() => {
      if (field.current && document.activeElement !== field.current) field.current.value = value;
    }, [value]);
    useEffect(() => () => clearTimeout(timer.current), []);
    const later = (event) => {
      const words = event.target.value;
      clearTimeout(timer.current);
      timer.current = setTimeout(() => coevo.setParams({ [name]: words }), 180);
    };
    return html`<label class="field grow"><span>${label}</span>
      <input ref=${field} type="search" name=${name} defaultValue=${value} onInput=${later} placeholder=${placeholder} autocomplete="off" spellcheck=${false} />
    </label>`;
  };

  const CopyMark = () => html`<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" class="mark">
    <rect x="5.5" y="5.5" width="8" height="8" rx="1.6" /><path d="M10.5 3.5v-.4c0-.9-.7-1.6-1.6-1.6H3.6C2.7 1.5 2 2.2 2 3.1v5.3c0 .9.7 1.6 1.6 1.6h.4" /></svg>`;

  /** A button that copies the address of a page to the clipboard. */
  const CopyLink = ({ href, label = "Copy link" }) => {
    const [done, setDone] = useState("");
    const copy = async () => {
      const address = new URL(href || window.location.hash, window.location.href).href;
      try {
        await navigator.clipboard.writeText(address);
        setDone("Copied");
      } catch {
        window.prompt("The browser blocks access to the clipboard. Copy this link:", address);
      }
      setTimeout(() => setDone(""), 1600);
    };
    return html`<button type="button" class="quiet copy" onClick=${copy} title="Copy a link to this page">
      <${CopyMark} /> <span aria-live="polite">${done || label}</span></button>`;
  };

  /** A section of a page with a heading. */
  const Section = ({ title, note, aside, children, id }) => html`<section class="section" id=${id} aria-label=${title}>
    <div class="section-head"><h2>${title}</h2>${aside}</div>
    ${note && html`<p class="note">${note}</p>`}
    ${children}
  </section>`;

  /** Labelled numbers in a row. */
  const Figures = ({ of }) => html`<dl class="figures">
    ${of.filter(Boolean).map(([label, value, more]) => html`<div key=${label}><dt>${label}</dt><dd>${value}${more && html`<small>${more}</small>`}</dd></div>`)}
  </dl>`;

  Object.assign(coevo, {
    Outcome, Kind, Tag, Rate, Facts, Empty, Problem, Loaded, Choice, Select, TextFilter, CopyLink,
    Section, Figures, percent,
  }); // prettier-ignore
})();
