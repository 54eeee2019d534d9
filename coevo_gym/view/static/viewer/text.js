// Display of untrusted text as isolated plain text. Characters that are invisible or change the
// writing direction are shown as small marks.
"use strict";

(() => {
  const { html, useState } = coevo;

  // C0 and C1 controls except tab and line feed; soft hyphen; Arabic letter mark; Hangul and Khmer
  // fillers; zero-width and direction marks; line and paragraph separators; variation of
  // formatting; byte-order mark; interlinear marks; tag characters; lone surrogates.
  const HIDDEN =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb]|\udb40[\udc00-\udc7f]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
  const ALL = new RegExp(HIDDEN.source, "g");
  const NAMES = {
    0x0: "NUL", 0x7: "BEL", 0x8: "BS", 0xd: "CR", 0x1b: "ESC", 0x7f: "DEL", 0xad: "SHY",
    0x61c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM",
    0x2028: "LS", 0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO",
    0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xfeff: "BOM",
  }; // prettier-ignore

  const code = (piece) => piece.codePointAt(0);
  const nameOf = (piece) => NAMES[code(piece)] || code(piece).toString(16).toUpperCase();

  /** The pieces of a text: strings, and a mark for each invisible character. */
  const visible = (text) => {
    if (!HIDDEN.test(text)) return text;
    const pieces = [];
    let from = 0;
    for (const { 0: found, index } of text.matchAll(ALL)) {
      if (found === "\u200d" && /\p{Extended_Pictographic}\ufe0f?$/u.test(text.slice(Math.max(0, index - 4), index))) {
        continue; // it joins an emoji with the next one
      }
      if (index > from) pieces.push(text.slice(from, index));
      const number = code(found).toString(16).toUpperCase().padStart(4, "0");
      pieces.push(html`<span class="hidden-char" title=${`U+${number}, an invisible character`}>${nameOf(found)}</span>`);
      from = index + found.length;
    }
    pieces.push(text.slice(from));
    return pieces;
  };

  /**
   * The text on one line, with names in place of invisible characters, for places without markup, such
   * as options of a field and the window title.
   */
  const plain = (text, most = 300) => {
    const flat = cut(asText(text), most).replace(/[\t\n ]+/g, " ");
    return HIDDEN.test(flat) ? flat.replace(ALL, (found) => `[${nameOf(found)}]`) : flat;
  };

  const asText = (value) => (typeof value === "string" ? value : value == null ? "" : String(value));

  /** The first `most` characters, without splitting a surrogate pair. */
  const cut = (text, most) => {
    if (text.length <= most) return text;
    const half = /[\ud800-\udbff]/.test(text[most - 1]);
    return text.slice(0, half ? most - 1 : most);
  };

  /** Untrusted text on one line, cut after `most` characters. */
  const Words = ({ text, most = 300, class: name }) => {
    const whole = asText(text);
    const flat = cut(whole, most * 2).replace(/[\t\n ]+/g, " ").trim();
    const shown = cut(flat, most);
    const more = shown.length < flat.length || whole.length > most * 2;
    return html`<bdi class=${coevo.cls("words", name)} title=${more ? whole : null}>${visible(shown)}${more && "…"}</bdi>`;
  };

  const CHUNK = 20000;

  /**
   * Untrusted text with its line breaks. Text after `most` characters is hidden and can be shown in
   * pieces, so that a megabyte does not block the page.
   */
  const Prose = ({ text, most = 2400, class: name, label }) => {
    const whole = asText(text);
    const [length, setLength] = useState(most);
    const folded = whole.length > length + 200;
    const shown = folded ? cut(whole, length) : whole;
    const left = whole.length - shown.length;
    return html`<div class=${coevo.cls("prose", name)} aria-label=${label}>
      <bdi dir="auto">${visible(shown)}${folded && "…"}</bdi>
      ${folded &&
      html`<button type="button" class="link unfold" onClick=${() => setLength(length + Math.max(CHUNK, most))}>
        Show ${left > CHUNK ? `${CHUNK.toLocaleString("en")} of ${left.toLocaleString("en")}` : left.toLocaleString("en")} more characters
      </button>`}
    </div>`;
  };

  Object.assign(coevo, { visible, plain, cut, Words, Prose });
})();
