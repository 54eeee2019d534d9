// Downloads of charts and tables: SVG with plain colours, CSV and JSON. Files are made in the page.
"use strict";

(() => {
  const { html, useState, plain } = coevo;

  /** Save a file in the browser's folder for downloads. */
  const save = (name, type, text) => {
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([text], { type }));
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
  };

  /** A file name: letters and digits of a title, joined by hyphens. */
  const fileName = (title) =>
    plain(title, 200).normalize("NFKD").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "data";

  // ---- tables -------------------------------------------------------------------------------

  /** The text of a CSV cell. As in coevo_gym/core/text_tables.py, a spreadsheet reads no formula. */
  const csvCell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value !== "string") return String(value);
    const text = plain(value, Infinity);
    const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const toCsv = ({ columns, rows }) => [columns, ...rows].map((row) => `${row.map(csvCell).join(",")}\n`).join("");

  /** The fields of a row by their paths: `{a: {b: 1}, c: [2, 3]}` is `{"a.b": 1, c: "2; 3"}`. */
  const fieldsOf = (value, path = "", fields = {}) => {
    if (Array.isArray(value)) {
      const simple = value.every((one) => one === null || typeof one !== "object");
      fields[path] = simple ? value.join("; ") : JSON.stringify(value);
    } else if (value !== null && typeof value === "object") {
      for (const [name, inner] of Object.entries(value)) fieldsOf(inner, path ? `${path}.${name}` : name, fields);
    } else fields[path] = value;
    return fields;
  };

  /** Rows of a list as a table with a column for each field. */
  const tableOf = (rows) => {
    const all = rows.map((row) => fieldsOf(row));
    const columns = [...new Set(all.flatMap(Object.keys))];
    return { columns, rows: all.map((row) => columns.map((name) => row[name])) };
  };

  // ---- pictures -----------------------------------------------------------------------------

  /** Style properties that are written into a picture: those that children inherit, and others. */
  const INHERITED = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "font-size", "font-weight", "text-anchor", "visibility"];
  const OWN = { opacity: "1", "mix-blend-mode": "normal", "paint-order": "normal" };

  let pixel = null;
  const seen = new Map();

  /** A colour as `[hex, opacity]`: other programs read neither light-dark() nor oklab(). */
  const plainColour = (colour) => {
    if (seen.has(colour)) return seen.get(colour);
    if (!pixel) {
      pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      pixel.canvas.width = pixel.canvas.height = 1;
    }
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
    const hex = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
    seen.set(colour, [hex, alpha / 255]);
    return seen.get(colour);
  };

  /** The inherited properties of an element, with plain colours. */
  const looksOf = (style) => {
    const looks = Object.fromEntries(INHERITED.map((name) => [name, style.getPropertyValue(name).replaceAll("px", "").replaceAll('"', "")]));
    for (const name of ["fill", "stroke"]) {
      if (looks[name] === "none" || looks[name].startsWith("url(")) continue;
      const [hex, alpha] = plainColour(looks[name]);
      looks[name] = hex;
      looks[`${name}-opacity`] = `${+(alpha * looks[`${name}-opacity`]).toFixed(3)}`;
    }
    return looks;
  };

  /** Write the styles of a copy's elements into attributes, so that no style sheet is needed. */
  const inline = (node, above = {}) => {
    const style = getComputedStyle(node);
    const looks = looksOf(style);
    const own = Object.entries(OWN).map(([name, usual]) => [name, style.getPropertyValue(name), usual]);
    for (const child of node.children) inline(child, looks);
    for (const { name } of [...node.attributes]) {
      if (name in looks || name.startsWith("aria-") || ["class", "style", "role", "tabindex"].includes(name)) node.removeAttribute(name);
    }
    for (const name of INHERITED) if (above[name] !== looks[name]) node.setAttribute(name, looks[name]);
    for (const [name, value, usual] of own) if (value !== usual) node.setAttribute(name, value);
  };

  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes, ...children) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  /** Replace links by groups: their addresses mean nothing outside the page. */
  const unlink = (node) => {
    for (const link of node.querySelectorAll("a")) {
      const group = make("g", {}, ...link.childNodes);
      link.replaceWith(group);
    }
  };

  const EDGE = 12;

  /** A chart's figure as an SVG file: its title, the legend of what is shown, and the drawing. */
  const toSvg = (figure) => {
    const drawing = figure.querySelector(".chart-drawing > svg");
    const box = drawing.getBoundingClientRect();
    const title = figure.querySelector(".chart-title");
    const top = 24;
    const legend = [...figure.querySelectorAll(".chart-legend li")].filter((item) => !item.querySelector("[aria-pressed='false']"));
    const start = figure.querySelector(".chart-legend")?.getBoundingClientRect();
    const below = EDGE + top + (legend.length ? start.height + 6 : 0);
    const width = box.width + 2 * EDGE;
    const height = below + box.height + EDGE;
    const copy = drawing.cloneNode(true);
    for (const [name, value] of Object.entries({ x: EDGE, y: below, width: box.width, height: box.height, overflow: "visible" })) copy.setAttribute(name, value);
    const parts = legend.flatMap((item) => {
      const sample = item.querySelector("svg");
      const at = sample.getBoundingClientRect();
      const mine = sample.cloneNode(true);
      const [x, y] = [EDGE + at.left - start.left, EDGE + top + at.top - start.top];
      for (const [name, value] of Object.entries({ x, y, width: at.width, height: at.height, overflow: "visible" })) mine.setAttribute(name, value);
      return [mine, make("text", { x: x + at.width + 6, y: y + at.height / 2, dy: "0.35em", class: "chart-said" }, item.textContent.trim())];
    });
    const svg = make(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height },
      make("rect", { width, height, class: "chart-sheet" }),
      make("text", { x: EDGE, y: EDGE + 12, class: "chart-said chart-heading" }, plain(title.textContent, 200)),
      ...parts,
      copy,
    );
    unlink(svg);
    const sheet = document.createElement("div");
    sheet.className = "chart-light";
    sheet.append(svg);
    document.body.append(sheet);
    inline(svg);
    sheet.remove();
    svg.setAttribute("font-family", "Arial, Helvetica, sans-serif");
    return `${new XMLSerializer().serializeToString(svg)}\n`;
  };

  // ---- buttons ------------------------------------------------------------------------------

  /**
   * Buttons that save a chart or a table.
   *
   * @param title the name of the file.
   * @param svg(button) returns the picture as text; none for a table.
   * @param data() returns `{columns, rows, json}`, or a promise of it; `json` is what the JSON file
   *   contains.
   */
  const Download = ({ title, svg, data }) => {
    const [state, setState] = useState("");
    const run = (kind) => async (event) => {
      const button = event.currentTarget;
      setState("…");
      try {
        const name = `${fileName(title)}.${kind}`;
        if (kind === "svg") save(name, "image/svg+xml", svg(button));
        else {
          const found = await data();
          if (kind === "csv") save(name, "text/csv", toCsv(found));
          else save(name, "application/json", `${JSON.stringify(found.json, null, 1)}\n`);
        }
        setState("");
      } catch (error) {
        setState(` ${error.message}`);
      }
    };
    return html`<p class="download">Download${" "}
      ${[svg && "svg", "csv", "json"].filter(Boolean).map((kind) => html`<button type="button" class="link" key=${kind} onClick=${run(kind)}
        aria-label=${`Download as ${kind.toUpperCase()}: ${title}`}>${kind.toUpperCase()}</button> `)}
      <span role="status">${state}</span></p>`;
  };

  Object.assign(coevo, { Download, tableOf, toSvg });
})();
