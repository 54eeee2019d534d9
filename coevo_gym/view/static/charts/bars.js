// Bar charts: columns (stacked, side by side, or a histogram), rows with their numbers at the ends,
// and rows of values with intervals.
"use strict";

(() => {
  const { given } = coevo;
  const { NARROW, kinds, write, tick, interval, cellOf, intervalCell, INTERVAL, textWidth, shorten, look, marked, domainOf, ticksOf, axisX, axisY, plot, tips } = coevo.charts;

  // ---- fills --------------------------------------------------------------------------------

  const colourOf = (fill, i) => fill.colour || look(fill.style ?? i).colour;
  const hatchOf = (fill, i, all) => fill.hatch ?? (all.length > 1 ? i % 4 : 0);

  const fillParts = ({ fills }) =>
    fills.map((fill, i) => ({
      label: fill.label, colour: colourOf(fill, i), hatch: hatchOf(fill, i, fills), sample: "bar",
    })); // prettier-ignore

  const BOX = { x1: "x1", x2: "x2", y1: "y1", y2: "y2" };

  /** A mark for the boxes of each fill, with its hatch on top. */
  const filled = (boxes, fills) =>
    fills.flatMap((fill, k) => {
      const mine = boxes.filter((box) => box.k === k);
      const hatch = hatchOf(fill, k, fills);
      const over = hatch && Plot.rect(mine, { ...BOX, fill: `url(#hatch-${hatch})`, pointerEvents: "none" });
      return [Plot.rect(mine, { ...BOX, fill: colourOf(fill, k), href: "href" }), over].filter(Boolean);
    });

  let pictures = 0;

  /** Add hatches to a chart: slanted lines, dots, level lines. They distinguish fills without colour. */
  const hatched = (svg) => {
    const id = `chart-${(pictures += 1)}-hatch`;
    const defs = d3.select(svg).insert("defs", ":first-child");
    const pattern = (i, turn) =>
      defs.append("pattern").attr("id", `${id}-${i}`).attr("width", 6).attr("height", 6)
        .attr("patternUnits", "userSpaceOnUse").attr("patternTransform", turn); // prettier-ignore
    pattern(1, "rotate(45)").append("path").attr("class", "chart-hatch").attr("d", "M0 0V6");
    pattern(2, null).append("circle").attr("class", "chart-hatch-dot").attr("cx", 3).attr("cy", 3).attr("r", 1.3);
    pattern(3, null).append("path").attr("class", "chart-hatch").attr("d", "M0 3H6");
    for (const node of svg.querySelectorAll("[fill^='url(#hatch-']")) {
      node.setAttribute("fill", node.getAttribute("fill").replace("#hatch", `#${id}`));
    }
    return svg;
  };

  // ---- columns ------------------------------------------------------------------------------

  /**
   * Vertical bars. Properties of the kind "columns":
   *   columns  [{label, values: [one per fill], href}]
   *   fills    [{label, style, colour, hatch}]
   *   stacked  true to stack the bars of a column, else they are side by side
   *   x, y     axes
   */
  kinds.columns = {
    empty: ({ columns }) => !columns.some(({ values }) => values.some((value) => value > 0)),

    parts: fillParts,

    table: ({ columns, fills, x, y }) => ({
      head: [x.label, ...fills.map(({ label }) => label || y.label)],
      rows: columns.map(({ label, values, href }) => [
        { text: label, href },
        ...values.map((value) => cellOf(y.format || "count", value)),
      ]),
    }),

    draw: (spec, width) => {
      const { columns, fills, x, y } = spec;
      const format = y.format || "count";
      const boxes = columns.flatMap((column, i) => boxesOf(spec, column, i));
      const domain = domainOf(boxes.map((box) => box.y2), y); // prettier-ignore
      const ticks = ticksOf(domain, 4, format);
      const marginLeft = 14 + d3.max(ticks, (value) => textWidth(tick(format, value), 11));
      const label = (i) => shorten(columns[i].label, 140, 11);
      const widest = d3.max(columns, (_, i) => textWidth(label(i), 11)) + 10;
      const every = Math.max(1, Math.ceil((widest * columns.length) / (width - marginLeft - 16)));
      return hatched(
        plot({
          width,
          height: spec.height || 230,
          marginLeft,
          marginTop: 26,
          marginRight: 16,
          marginBottom: 44,
          x: { domain: [0, columns.length] },
          y: { domain },
          marks: [
            Plot.gridY(ticks),
            Plot.axisY(ticks, axisY(y.label, { tickFormat: (value) => tick(format, value) })),
            Plot.axisX(
              d3.range(0, columns.length, every).map((i) => i + 0.5),
              axisX(x.label, { tickFormat: (at) => label(Math.floor(at)) }),
            ),
            Plot.ruleY([0], { stroke: "var(--chart-soft)" }),
            filled(boxes, fills),
            tips(boxes, BOX, Plot.pointerX),
          ],
        }),
      );
    },
  };

  /** Bars of one column; x is in columns, y in units of the axis. */
  const boxesOf = ({ fills, stacked, x, y }, { label, values, href }, i) => {
    const wide = stacked ? 0.8 : 0.8 / fills.length;
    let base = 0;
    return values.flatMap((value, k) => {
      if (!given(value) || value <= 0) return [];
      const x1 = i + 0.1 + (stacked ? 0 : k * wide);
      const y1 = stacked ? base : 0;
      base += value;
      const name = fills[k].label || y.label;
      const tip = () => `${x.label} ${shorten(label, 220)}\n${shorten(name, 220)}: ${write(y.format || "count", value)}`;
      return [{ k, x1, x2: x1 + wide * (stacked ? 1 : 0.94), y1, y2: y1 + value, href, tip }];
    });
  };

  /**
   * Columns of a histogram of whole numbers, for the kind "columns".
   *
   * @param groups lists of numbers, one per fill.
   * @param most maximum number of columns.
   */
  const histogram = (groups, most = 20) => {
    const all = groups.flat().filter(given);
    if (!all.length) return [];
    const low = Math.min(1, d3.min(all));
    const high = d3.max(all);
    const size = Math.ceil((high - low + 1) / most);
    return d3.range(low, high + 1, size).map((start) => {
      const end = Math.min(start + size - 1, high);
      const values = groups.map((of) => of.filter((value) => start <= value && value < start + size).length);
      return { label: start === end ? `${start}` : `${start}–${end}`, values };
    });
  };

  // ---- rows ---------------------------------------------------------------------------------

  /** Positions of rows; names are to the left of their rows, or above them in a narrow chart. */
  const frameOf = (rows, width, tall) => {
    const above = width < NARROW;
    const step = tall + (above ? 17 : 0);
    const widest = d3.max(rows, ({ label }) => textWidth(shorten(label, 400))) + 16;
    const marginLeft = above ? 4 : Math.min(widest, 0.42 * width);
    const names = Plot.text(rows, {
      frameAnchor: "left",
      y: (_, i) => i * step + (above ? 10 : tall / 2),
      dx: above ? 5 : -9,
      text: ({ label }) => shorten(label, above ? width - 20 : marginLeft - 14),
      textAnchor: above ? "start" : "end",
      href: "href",
    });
    return {
      names,
      top: (i) => i * step + (above ? 17 : 0),
      y: { domain: [rows.length * step, 0], axis: null },
      size: { width, marginLeft, marginTop: 4, marginBottom: 4, height: rows.length * step + 8 },
    };
  };

  /**
   * Horizontal bars, in the given order. Properties of the kind "rows":
   *   rows   [{label, values: [one per fill], href}]
   *   fills  [{label, style, colour, hatch}]
   *   x      the axis
   */
  kinds.rows = {
    empty: ({ rows }) => !rows.some(({ values }) => values.some((value) => value > 0)),

    parts: fillParts,

    table: ({ rows, fills, x }) => ({
      head: ["", ...fills.map(({ label }) => label || x.label)],
      rows: rows.map(({ label, values, href }) => [
        { text: label, href },
        ...values.map((value) => cellOf(x.format || "count", value)),
      ]),
    }),

    draw: ({ rows, fills, x }, width) => {
      const frame = frameOf(rows, width, 16 * fills.length + 10);
      const most = d3.max(rows, ({ values }) => d3.max(values.filter(given))) || 1;
      const boxes = rows.flatMap(({ label, values, href }, i) =>
        values.flatMap((value, k) => {
          if (!given(value)) return [];
          const y1 = frame.top(i) + 5 + 16 * k;
          const said = write(x.format || "count", value);
          const tip = () => `${shorten(label, 230)}\n${shorten(fills[k].label || x.label, 220)}: ${said}`;
          return [{ k, x1: 0, x2: value, y1, y2: y1 + 14, said, href, tip }];
        }),
      );
      return hatched(
        plot({
          ...frame.size,
          marginRight: 14 + d3.max(boxes, ({ said }) => textWidth(said)),
          x: { domain: [0, most], axis: null },
          y: frame.y,
          marks: [
            Plot.ruleX([0], { stroke: "var(--chart-soft)" }),
            filled(boxes, fills),
            Plot.text(boxes, { x: "x2", y: ({ y1 }) => y1 + 7, text: "said", dx: 6, textAnchor: "start" }),
            frame.names,
            tips(boxes, BOX, Plot.pointerY),
          ],
        }),
      );
    },
  };

  /**
   * One value with its interval per row. Properties of the kind "intervals":
   *   rows  [{label, value, low, high, said, href, style}]: `said` is a remark beside the value
   *   x     the axis
   *   at    a reference value, drawn as a line across all rows
   *   band  what the intervals are, unless they are 95 % intervals
   */
  kinds.intervals = {
    empty: ({ rows }) => !rows.some(({ value }) => given(value)),

    parts: () => [],

    table: ({ rows, x, band }) => ({
      head: ["", x.label, band ? { ...INTERVAL, text: band } : INTERVAL, ""],
      rows: rows.map((row) => [
        { text: row.label, href: row.href },
        cellOf(x.format, row.value),
        intervalCell(x.format, row),
        row.said || "",
      ]),
    }),

    draw: ({ rows, x, at }, width) => {
      const frame = frameOf(rows, width, 26);
      const placed = rows.map((row, i) => ({
        ...row,
        style: row.style || 0,
        y: frame.top(i) + 13,
        written: [write(x.format, row.value), row.said].filter(Boolean).join("  "),
        tip: () => `${shorten(row.label, 230)}\n${write(x.format, row.value)} (${interval(x.format, row)})`,
      }));
      const drawn = placed.filter(({ value }) => given(value));
      const marginRight = Math.min(14 + d3.max(placed, ({ written }) => textWidth(written)), 0.4 * width);
      const ticks = Math.max(2, Math.min(6, Math.floor((width - frame.size.marginLeft - marginRight) / 60)));
      return plot({
        ...frame.size,
        height: frame.size.height + 40,
        marginBottom: 44,
        marginRight,
        x: { domain: domainOf(drawn.flatMap(({ value, low, high }) => [value, low, high]), x) },
        y: frame.y,
        marks: [
          Plot.gridX({ ticks }),
          Plot.axisX(axisX(x.label, { ticks, tickFormat: (value) => tick(x.format, value) })),
          given(at) ? Plot.ruleX([at], { stroke: "var(--chart-soft)" }) : null,
          Plot.ruleY(drawn.filter(({ low, high }) => given(low) && given(high)), {
            y: "y", x1: "low", x2: "high", strokeWidth: 4, strokeOpacity: 0.45,
            stroke: ({ style }) => look(style).colour,
          }), // prettier-ignore
          d3.groups(drawn, ({ style }) => style).map(([style, mine]) =>
            Plot.dot(mine, { x: "value", y: "y", r: 4.2, href: "href", ...marked(style) }),
          ),
          Plot.text(placed, { y: "y", frameAnchor: "right", textAnchor: "start", dx: 8, text: "written" }),
          frame.names,
          tips(drawn, { x: "value", y: "y" }),
        ],
      });
    },
  };

  coevo.charts.histogram = histogram;
})();
