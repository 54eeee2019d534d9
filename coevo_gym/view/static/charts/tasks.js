// Charts of tasks: success on each task over time, and the lineage of tasks.
"use strict";

(() => {
  const { given } = coevo;
  const { NARROW, kinds, write, cellOf, textWidth, shorten, plot, tips, axisX } = coevo.charts;

  // ---- heat ---------------------------------------------------------------------------------

  /** Maximum number of drawn rows in a heat map; further rows are only in the table. */
  const MOST_ROWS = 40;

  /**
   * Shares in a grid, such as success on each task by round. Properties of the kind "heat":
   *   rows     [{label, href}]
   *   columns  [label]
   *   cells    [{row, column, value, said, href}]: index of the row and of the column, and a share in
   *            [0, 1]; `said` is shown in the tooltip, such as "3 of 8 episodes"
   *   x, y     {label}: names of the columns and of the rows
   */
  kinds.heat = {
    empty: ({ cells }) => !cells.some(({ value }) => given(value)),

    parts: () => [
      { label: "0\u202f%", sample: "bar", colour: shade(0) },
      { label: "50\u202f%", sample: "bar", colour: shade(0.5) },
      { label: "100\u202f%", sample: "bar", colour: shade(1) },
      { label: "no box: no episodes", sample: "bar", colour: "none" },
    ],

    table: ({ rows, columns, cells, y }) => {
      const of = d3.rollup(cells, ([cell]) => cell, ({ row }) => row, ({ column }) => column); // prettier-ignore
      return {
        head: [y.label, ...columns],
        rows: rows.map((row, i) => [
          { text: row.label, href: row.href },
          ...columns.map((_, j) => cellOf("percent", of.get(i)?.get(j)?.value)),
        ]),
      };
    },

    draw: ({ rows, columns, cells, x, y }, width) => {
      const n = Math.min(rows.length, MOST_ROWS);
      const names = rows.slice(0, n).map(({ label }) => shorten(label, 0.38 * width));
      const marginLeft = d3.max(names, (name) => textWidth(name)) + 14;
      const step = (width - marginLeft - 4) / columns.length;
      const drawn = cells
        .filter(({ row, value }) => row < n && given(value))
        .map((cell) => ({
          ...cell,
          written: step >= 34 ? Math.round(100 * cell.value) : "",
          tip: () =>
            [
              shorten(rows[cell.row].label, 600),
              `${x.label} ${columns[cell.column]}: ${write("percent", cell.value)}`,
              cell.said,
            ].filter(Boolean).join("\n"),
        })); // prettier-ignore
      const every = Math.max(1, Math.ceil((d3.max(columns, (name) => textWidth(name, 11)) + 8) / step));
      const left = rows.length - n;
      return plot({
        width,
        height: n * 22 + 70,
        marginLeft,
        marginRight: 4,
        marginTop: 26,
        marginBottom: 44,
        x: { domain: d3.range(columns.length), type: "band", padding: 0 },
        y: { domain: d3.range(n), type: "band", padding: 0, axis: null },
        marks: [
          Plot.axisX(
            d3.range(0, columns.length, every),
            axisX(x.label, { tickFormat: (i) => columns[i] }),
          ),
          Plot.text([left > 0 ? `${y.label}; ${left} more in the table` : y.label], {
            frameAnchor: "top-left", dx: -marginLeft + 4, dy: -16, textAnchor: "start", fill: "var(--chart-soft)",
          }), // prettier-ignore
          Plot.text(d3.range(n), {
            y: (i) => i, frameAnchor: "left", dx: -8, textAnchor: "end", text: (i) => names[i], href: (i) => rows[i].href,
          }), // prettier-ignore
          Plot.cell(drawn, {
            x: "column", y: "row", inset: 0.75, fill: ({ value }) => shade(value), stroke: "var(--chart-rule)",
            strokeWidth: 0.5, href: "href",
          }), // prettier-ignore
          Plot.text(drawn, {
            x: "column", y: "row", text: "written", fontSize: 11, pointerEvents: "none",
            fill: ({ value }) => (value > 0.68 ? "var(--chart-paper)" : "var(--chart-ink)"),
          }), // prettier-ignore
          tips(drawn, { x: "column", y: "row" }),
        ],
      });
    },
  };

  const shade = (share) =>
    `color-mix(in oklab, var(--chart-high) ${Math.round(100 * share)}%, var(--chart-low))`;

  // ---- lineage ------------------------------------------------------------------------------

  const foundIn = (round) => (typeof round === "string" ? round : round ? `round ${round}` : "D_0");

  /**
   * Tasks and their ancestors, each on a separate line below its parent. Properties of the kind
   * "lineage":
   *   nodes  [{id, parents: [id], label, round, kind, said, href, here}]: `round` is a number (0 for
   *          D_0) or a word such as "native"; `kind` is the kind of the signal that led to the task;
   *          `said` is the end of the line, such as "63 % solved"; `here` marks the page's own task
   */
  kinds.lineage = {
    empty: ({ nodes }) => !nodes.length,

    parts: () => [],

    table: ({ nodes }) => ({
      head: ["task", "found in", "parents", "reason", ""],
      rows: placed(nodes).map(({ label, round, href, kind, said, parents }) => [
        { text: label, href },
        foundIn(round),
        parents.map((id) => nodes.find((node) => node.id === id)?.label || id).join("; ") || coevo.NONE,
        kind || coevo.NONE,
        said || "",
      ]),
    }),

    draw: ({ nodes }, width) => {
      const rows = placed(nodes);
      const narrow = width < NARROW;
      const deepest = d3.max(rows, ({ depth }) => depth);
      const indent = Math.min(narrow ? 14 : 26, (0.3 * width) / Math.max(deepest, 1));
      const left = narrow ? 8 : 66;
      const tall = narrow ? 46 : 34;
      const at = new Map(rows.map((row) => [row.id, row]));
      const x = ({ depth }) => left + depth * indent;
      const y = ({ line }) => line * tall + 17;
      const links = rows.flatMap((child) =>
        child.parents.filter((id) => at.has(id)).map((id, i) => ({ from: at.get(id), to: child, first: i === 0 })),
      );
      const joints = links.map(({ from, to, first }) => ({
        first, points: [[x(from), y(from) + 6], [x(from), y(to)], [x(to) - 7, y(to)]],
      })); // prettier-ignore
      const beside = (row) => (row.said && !narrow ? textWidth(row.said, 11) + 16 : 0);
      const named = rows.map((row) => ({
        ...row,
        name: shorten(row.label, width - x(row) - 16 - beside(row), row.here ? 13.6 : 12), // bold text is wider
        below: [foundIn(row.round), row.said].filter(Boolean).join(" · "),
        tip: () => [shorten(row.label, 900), row.kind && `reason: ${row.kind}`, row.said].filter(Boolean).join("\n"),
      }));
      const aside = { y, fontSize: 11, fill: "var(--chart-soft)" };
      const solid = ({ here }) => (here ? "var(--chart-0)" : "var(--chart-paper)");
      return plot({
        width,
        height: rows.length * tall + 4,
        margin: 0,
        x: { domain: [0, width], range: [0, width], axis: null },
        y: { domain: [0, rows.length * tall], range: [0, rows.length * tall], axis: null },
        marks: [
          joints.map(({ points, first }) =>
            Plot.line(points, {
              stroke: "var(--chart-soft)", strokeWidth: 1.2, strokeDasharray: first ? null : "3 3",
            }), // prettier-ignore
          ),
          narrow
            ? Plot.text(named, { ...aside, x, text: "below", textAnchor: "start", dx: 12, dy: 16 })
            : [
                Plot.text(named, { ...aside, x: 0, text: ({ round }) => foundIn(round), textAnchor: "start" }),
                Plot.text(named, { ...aside, x: width, text: "said", textAnchor: "end", dx: -2 }),
              ],
          Plot.dot(named, { x, y, r: 5, fill: solid, stroke: "var(--chart-0)", strokeWidth: 1.8, href: "href" }),
          Plot.text(named.filter(({ here }) => !here), {
            x, y, dx: 12, text: "name", textAnchor: "start", href: "href",
          }), // prettier-ignore
          Plot.text(named.filter(({ here }) => here), {
            x, y, dx: 12, text: "name", textAnchor: "start", fontWeight: 650,
          }), // prettier-ignore
          tips(named, { x, y }, Plot.pointerY),
        ],
      });
    },
  };

  /** All tasks in drawing order, each below its first parent, with line number and depth. */
  const placed = (nodes) => {
    const known = new Set(nodes.map(({ id }) => id));
    const parentOf = ({ parents }) => parents.find((id) => known.has(id));
    const children = d3.group(nodes, parentOf);
    const rows = [];
    const visit = (node, depth) => {
      known.delete(node.id);
      rows.push({ ...node, depth, line: rows.length });
      for (const child of children.get(node.id) || []) if (known.has(child.id)) visit(child, depth + 1);
    };
    for (const root of children.get(undefined) || []) visit(root, 0);
    for (const node of nodes) if (known.has(node.id)) visit(node, 0); // nodes in a cycle
    return rows;
  };

  coevo.charts.shade = shade;
})();
