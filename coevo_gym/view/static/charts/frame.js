// Charts: converts plain descriptions to SVG with Observable Plot. A page draws a chart with
//
//   html`<${coevo.Chart} kind="lines" title="…" series=${…} x=${…} y=${…} />`
//
// Every chart has a title, a legend that distinguishes its parts by mark, pattern and colour, and a
// table of its values behind "Numbers", and can be downloaded. Colours are custom properties in charts.css, so charts need not
// be redrawn for dark mode, light mode or printing. All kinds of charts have the properties
//
//   title   the title
//   note    an optional sentence below the chart
//   none    text in place of an empty chart
//   height  height of the plot in pixels, for kinds with a variable height
//
// Axes are {label, format, domain}. A format is a name in coevo.charts.formats or a function from
// number to text. A number that is null or NaN is missing and leaves a gap. Further properties are
// documented with each kind: lines (lines.js); columns, rows and intervals (bars.js); heat and lineage
// (tasks.js). coevo.Cross is a 2×2 table (cross.js).
"use strict";

(() => {
  const { html, useLayoutEffect, useMemo, useRef, useState, given, count, plain, Words } = coevo;

  const kinds = {};

  /** Width in pixels below which names are above their rows, on separate lines. */
  const NARROW = 520;

  // ---- numbers and words --------------------------------------------------------------------

  const signed = (value, digits) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${coevo.fixed(Math.abs(value), digits)}`;

  /** Number formats by name. */
  const formats = {
    count,
    compact: (value) => {
      for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
        if (Math.abs(value) >= size) return `${+(value / size).toPrecision(4)}${unit}`;
      }
      return `${+value.toPrecision(4)}`;
    },
    percent: (value) => coevo.percent(value),
    points: (value) => signed(100 * value, 1),
    number: (value) => `${+value.toPrecision(3)}`,
  };

  /** A number as text, or a dash if it is missing. */
  const write = (format, value) => {
    if (!given(value)) return coevo.NONE;
    return typeof format === "function" ? format(value) : formats[format || "number"](value);
  };

  /** A cell of a chart's table: the number as text for readers, and as it is for downloads. */
  const cellOf = (format, value) => ({ text: write(format, value), values: [given(value) ? value : null] });

  /** A cell with the two ends of an interval, and its heading. */
  const intervalCell = (format, { low, high }) => ({ text: interval(format, { low, high }), values: [low ?? null, high ?? null] });
  const INTERVAL = { text: "95\u202f% interval", values: ["low", "high"] };

  /** The text of an axis tick, without trailing zeros. */
  const tick = (format, value) => {
    const digits = +(100 * value).toFixed(1) % 1 ? 1 : 0;
    if (format === "percent") return coevo.percent(value, digits);
    if (format === "points") return signed(100 * value, digits);
    return write(format, value);
  };

  const interval = (format, { low, high }) =>
    given(low) && given(high) ? `${write(format, low)} to ${write(format, high)}` : coevo.NONE;

  /** Approximate width of a text in pixels; wide scripts count double. */
  const textWidth = (text, size = 12) => {
    let units = 0;
    for (const char of `${text}`) units += char.codePointAt(0) >= 0x1100 ? 1 : 0.56;
    return units * size;
  };

  /** A label, shortened to a width in pixels. */
  const shorten = (text, width, size = 12) => {
    const flat = Array.from(plain(text, 400).trim());
    if (textWidth(flat.join(""), size) <= width) return flat.join("");
    while (flat.length && textWidth(`${flat.join("")}…`, size) > width) flat.pop();
    return `${flat.join("").trimEnd()}…`;
  };

  /** At most `most` items, evenly spaced from the first to the last. */
  const spread = (items, most) => {
    if (items.length <= most) return items;
    const step = (items.length - 1) / (most - 1);
    return Array.from({ length: most }, (_, i) => items[Math.round(i * step)]);
  };

  // ---- looks --------------------------------------------------------------------------------

  const DASHES = [null, "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "12 4"];
  const SYMBOLS = ["circle", "square", "triangle", "diamond", "circle", "times"];
  const HOLLOW = [false, false, false, false, true, true];

  /** The look of the series with this number. The first six differ in colour, pattern and mark; later
   * ones repeat the colours with other patterns and marks. */
  const look = (style) => {
    const turn = (style + Math.floor(style / 6)) % 6;
    const colour = `var(--chart-${style % 6})`;
    return { colour, dash: DASHES[turn], symbol: SYMBOLS[turn], hollow: HOLLOW[turn] };
  };

  /** Fill and stroke of a style's marks, as options for Plot. */
  const marked = (style, colour = look(style).colour) => {
    const { symbol, hollow } = look(style);
    const paper = "var(--chart-paper)";
    return {
      symbol, strokeWidth: hollow ? 1.8 : 1,
      fill: hollow ? paper : colour, stroke: hollow ? colour : paper,
    }; // prettier-ignore
  };

  /** Style numbers by name; the most important name has the first style. */
  const styles = (names, focus) => {
    const order = focus === undefined ? names : [focus, ...names];
    const known = [...new Set(order)].filter((name) => names.includes(name));
    return Object.fromEntries(known.map((name, i) => [name, i]));
  };

  // ---- drawing ------------------------------------------------------------------------------

  /** Round limits of an axis that include zero and all values. */
  const domainOf = (values, axis) => {
    if (axis.domain) return axis.domain;
    const known = values.filter(given);
    const low = Math.min(0, d3.min(known) ?? 0);
    let high = Math.max(0, d3.max(known) ?? 1);
    if (low === high) high = low + 1;
    if (axis.format === "percent" && low === 0 && high <= 1) {
      return [0, [0.1, 0.2, 0.4, 0.6, 0.8, 1].find((top) => high <= top)];
    }
    return d3.scaleLinear().domain([low, high]).nice(5).domain();
  };

  /** About `n` round ticks of an axis; only whole numbers if the axis shows counts. */
  const ticksOf = (domain, n, format) => {
    const all = d3.ticks(...domain, n);
    return format === "count" || format === "compact" ? all.filter(Number.isInteger) : all;
  };

  /** Shared options of all axes. */
  const axisX = (label, more) => ({
    label: plain(label, 120), labelArrow: "none", labelAnchor: "center", labelOffset: 36, tickSize: 0, tickPadding: 7, ...more,
  }); // prettier-ignore
  const axisY = (label, more) => ({ label: plain(label, 120), labelArrow: "none", tickSize: 0, ...more });

  /** Plot.plot without its style element, which the page's Content-Security-Policy forbids; the rules
   * are in charts.css. Links in a chart are for the pointer, and those in its table for the keyboard. */
  const plot = (options) => {
    const svg = Plot.plot({ className: "coevo-plot", ...options, figure: false });
    svg.querySelector("style")?.remove();
    svg.setAttribute("role", "img");
    for (const link of svg.querySelectorAll("a")) link.setAttribute("tabindex", "-1");
    return svg;
  };

  /** The tooltip of the item nearest to the pointer; `tip()` returns its lines. */
  const tips = (items, places, pointer = Plot.pointer) =>
    Plot.tip(
      items,
      pointer({
        ...places, title: (item) => item, format: (item) => item.tip(), lineWidth: 34, fontSize: 12, textPadding: 7,
        preferredAnchor: "top-left", // to the right of the point and below it
      }), // prettier-ignore
    );

  // ---- the frame ----------------------------------------------------------------------------

  /** A chart of any kind, as wide as its container. */
  const Chart = (spec) => {
    const kind = kinds[spec.kind];
    const [hidden, setHidden] = useState(() => new Set());
    const empty = useMemo(() => kind.empty(spec), Object.values(spec));
    const toggle = (label) => {
      const next = new Set(hidden);
      if (!next.delete(label)) next.add(label);
      setHidden(next);
    };
    return html`<figure class=${`chart chart-of-${spec.kind}`}>
      <figcaption class="chart-title">${spec.title}</figcaption>
      ${empty
        ? html`<p class="note">${spec.none || "No data yet."}</p>`
        : html`<${Legend} parts=${kind.parts(spec)} alone=${spec.stacked} hidden=${hidden} toggle=${spec.kind === "lines" && toggle} />
            <${Drawing} kind=${kind} spec=${spec} hidden=${hidden} />
            ${spec.note && html`<p class="note">${spec.note}</p>`}
            <div class="chart-foot"><${Numbers} kind=${kind} spec=${spec} />
              <${coevo.Download} title=${spec.title} svg=${(button) => coevo.toSvg(button.closest("figure"))} data=${() => dataOf(spec, kind.table(spec))} /></div>`}
    </figure>`;
  };

  /** The drawing, which is redrawn when its data or its width changes. */
  const Drawing = ({ kind, spec, hidden }) => {
    const box = useRef(null);
    const [width, setWidth] = useState(0);
    useLayoutEffect(() => {
      const measure = () => setWidth(Math.floor(box.current ? box.current.clientWidth : 0));
      const watch = new ResizeObserver(measure);
      watch.observe(box.current);
      measure();
      return () => watch.disconnect();
    }, []);
    useLayoutEffect(() => {
      if (!width) return;
      const svg = kind.draw(spec, Math.max(width, 240), hidden);
      svg.setAttribute("aria-label", plain([spec.title, spec.note].filter(Boolean).join(". "), 1000));
      box.current.replaceChildren(svg);
    }, [...Object.values(spec), width, hidden]);
    return html`<div class="chart-drawing" ref=${box}></div>`;
  };

  /** The legend: names of a chart's parts with samples. Lines have buttons that hide them. A single
      part is named only with `alone`, that is, in a stacked chart. */
  const Legend = ({ parts, alone, hidden, toggle }) => {
    if (parts.length < (alone ? 1 : 2)) return null;
    return html`<ul class="chart-legend">
      ${parts.map((part) => {
        const inner = html`<${Sample} ...${part} /><${Words} text=${part.label} most=${48} />`;
        if (!toggle) return html`<li key=${part.label}>${inner}</li>`;
        const shown = !hidden.has(part.label);
        return html`<li key=${part.label}><button type="button" aria-pressed=${shown ? "true" : "false"}
          title=${shown ? "Hide this line" : "Show this line"} onClick=${() => toggle(part.label)}>${inner}</button></li>`;
      })}
    </ul>`;
  };

  const HATCHES = [null, "M-2 8L8 -2M2 14L18 -2M8 14L18 4", "M4 3h.1M12 3h.1M8 6h.1M4 9h.1M12 9h.1", "M0 3.5h16M0 8.5h16"];

  /** A sample of a chart's part: a line with its mark, a mark, or a bar. */
  const Sample = ({ style = 0, sample, colour = look(style).colour, hatch }) => {
    if (sample === "bar") {
      return html`<svg class="chart-sample" width="16" height="12" aria-hidden="true">
        <rect width="16" height="12" fill=${colour} />
        ${hatch ? html`<path d=${HATCHES[hatch]} class=${`chart-hatch of-${hatch}`} />` : null}</svg>`;
    }
    const { symbol, fill, stroke, strokeWidth } = marked(style, colour);
    const shape = d3[`symbol${symbol[0].toUpperCase()}${symbol.slice(1)}`];
    const mark = html`<path d=${d3.symbol(shape, 40)()} fill=${fill} stroke=${stroke} stroke-width=${strokeWidth} />`;
    if (sample === "mark") {
      return html`<svg class="chart-sample" width="14" height="12" viewBox="-7 -6 14 12" aria-hidden="true">${mark}</svg>`;
    }
    return html`<svg class="chart-sample" width="44" height="12" viewBox="-22 -6 44 12" aria-hidden="true">
      <path d="M-22 0H22" stroke=${colour} stroke-width="2" stroke-dasharray=${look(style).dash} />${mark}</svg>`;
  };

  /** Maximum number of rows in a table of numbers; if there are more, a selection is shown. */
  const MOST_ROWS = 200;

  /** The values of a chart as a table, which is created when it is opened. */
  const Numbers = ({ kind, spec }) => {
    const [open, setOpen] = useState(false);
    return html`<details class="chart-numbers" onToggle=${(event) => setOpen(event.target.open)}>
      <summary>Numbers<span class="sr"> of the chart: ${spec.title}</span></summary>
      ${open && html`<${NumbersTable} ...${kind.table(spec)} />`}
    </details>`;
  };

  const textOf = (cell) => (cell && typeof cell === "object" ? cell.text : cell);
  const valuesOf = (cell) => (cell && cell.values ? cell.values : [textOf(cell)]);

  /** A chart's table for downloads, with plain numbers. */
  const dataOf = ({ title, note }, { head, rows }) => {
    const columns = head.flatMap(valuesOf).map((name, i) => name || (i ? "remark" : "name"));
    const values = rows.map((row) => row.flatMap(valuesOf));
    return { columns, rows: values, json: { title, ...(note && { note }), columns, rows: values } };
  };

  const NumbersTable = ({ head, rows }) => {
    const shown = spread(rows, MOST_ROWS);
    const said = (cell) => html`<${Words} text=${textOf(cell)} most=${160} />`;
    const linked = (cell) => (cell && cell.href ? html`<a href=${cell.href}>${said(cell)}</a>` : said(cell));
    return html`<div class="chart-scroll" tabindex="0" role="region" aria-label="Numbers">
        <table><thead><tr>${head.map((name) => html`<th scope="col">${textOf(name)}</th>`)}</tr></thead>
        <tbody>${shown.map(
          ([first, ...rest]) => html`<tr><th scope="row">${linked(first)}</th>${rest.map((cell) => html`<td>${linked(cell)}</td>`)}</tr>`,
        )}</tbody></table></div>
      ${shown.length < rows.length && html`<p class="note">${count(shown.length)} of ${count(rows.length)} rows, evenly spread.</p>`}`;
  };

  coevo.Chart = Chart;
  coevo.charts = {
    NARROW, kinds, formats, write, tick, interval, cellOf, intervalCell, INTERVAL, textWidth, shorten, look, marked, styles,
    domainOf, ticksOf, axisX, axisY, plot, tips,
  }; // prettier-ignore
})();
