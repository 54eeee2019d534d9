// Tables: those of `coevo experiment` and of `coevo eval FILE.toml`, and evaluations on the same tasks.
"use strict";

(() => {
  const { html, link, useMemo, Words, Page, Loaded, Section, Table, Tag, Success, count, percent, given, plural, NONE } = coevo;

  const TONES = { training: "accent", running: "accent", finished: "good", stopped: "warn", failed: "bad", damaged: "bad" };

  const Cells = ({ of, none }) => {
    const states = Object.entries(of);
    if (!states.length) return html`<span class="soft">${none}</span>`;
    return html`<span class="arm-list">${states.map(([state, n]) => html`<${Tag} key=${state} tone=${TONES[state]}>${count(n)} ${state}<//>`)}</span>`;
  };

  const nameOf = ({ benchmark, split, panel }) => [`${benchmark}, ${split}`, panel && `panel ${panel}`].filter(Boolean).join(", ");

  /** The lists of tables; nothing if there are none. */
  const Tables = ({ tables = [], eval_tables: evalTables = [], ledgers = [] }) => html`
      ${tables.length > 0 && html`<${Section} title="Tables" note="Tables of coevo experiment. Each cell is a run.">
        <${Table} label="Tables" rows=${tables} keys=${false} keyOf=${(one) => one.id} href=${(one) => link(["tables", one.id])} columns=${[
          { label: "Table", cell: (one) => html`<b><${Words} text=${one.id} most=${60} /></b>` },
          { label: "Title", wide: true, cell: (one) => html`<${Words} text=${one.title} most=${160} />` },
          { label: "Cells", cell: (one) => html`<${Cells} of=${one.cells} none="from a file of cells" />` },
        ]} /><//>`}
      ${evalTables.length > 0 && html`<${Section} title="Models on benchmarks" note="Tables of coevo eval FILE.toml. Each cell is an evaluation.">
        <${Table} label="Models on benchmarks" rows=${evalTables} keys=${false} keyOf=${(one) => one.id} href=${(one) => link(["eval-tables", one.id])} columns=${[
          { label: "Table", cell: (one) => html`<b><${Words} text=${one.id} most=${60} /></b>` },
          { label: "Title", wide: true, cell: (one) => html`<${Words} text=${one.title} most=${160} />` },
          { label: "Models", num: true, cell: (one) => count(one.models) },
          { label: "Benchmarks", num: true, cell: (one) => count(one.benchmarks) },
          { label: "Cells", cell: (one) => html`<${Cells} of=${one.cells} none="unreadable" />` },
        ]} /><//>`}
      ${ledgers.length > 0 && html`<${Section} title="Evaluations in one table" note="Evaluations on the same split of a benchmark, with repeats in one row.">
        <${Table} label="Evaluations in one table" rows=${ledgers} keys=${false} keyOf=${(one) => one.id} href=${(one) => link(["ledgers", one.id])} columns=${[
          { label: "Tasks", cell: (one) => html`<b><${Words} text=${nameOf(one)} most=${80} /></b>` },
          { label: "Evaluations", wide: true, cell: (one) => html`<${Words} text=${one.names.join(", ")} most=${200} />` },
        ]} /><//>`}`;

  /** A number of a column, in the column's unit. */
  const inColumn = ({ share }, value) => {
    if (!given(value)) return NONE;
    if (share) return percent(value);
    return Math.abs(value) >= 100 ? count(value) : `${+value.toPrecision(3)}`;
  };

  const MeanAndSd = ({ line, metric }) => html`<span class="num"><b>${inColumn(metric, line.mean)}</b>${
    given(line.sd) && html`<small class="soft"> ± ${metric.share ? coevo.fixed(100 * line.sd, 1) : inColumn(metric, line.sd)}</small>`
  }</span>`;

  /** Differences are in percentage points if the metric is a share. */
  const difference = ({ share }, value) => (given(value) ? coevo.signed((share ? 100 : 1) * value, share ? 1 : 3) : NONE);

  /** With fewer seeds, Student's t makes an interval too wide to print. */
  const MIN_SEEDS = 3;

  const intervalOf = (metric, one) =>
    one.seeds < MIN_SEEDS ? "too few seeds" : `${difference(metric, one.low)} to ${difference(metric, one.high)}`;

  const lineColumns = ({ metric, columns, lines }) => {
    const compared = (line, write) => (line.comparisons.length ? line.comparisons.map((one) => html`<div key=${one.baseline}>${given(one.mean) ? write(one) : NONE}</div>`) : NONE);
    const any = lines.some((line) => line.comparisons.length);
    const unit = metric.share ? " (points)" : "";
    return [
      { label: "Row", cell: (line) => html`<b><${Words} text=${line.label} most=${80} /></b>` },
      { label: "Seeds", num: true, cell: (line) => count(line.seeds) },
      { label: `${metric.title} ± sd`, num: true, cell: (line) => html`<${MeanAndSd} line=${line} metric=${metric} />` },
      any && { label: "Against", cell: (line) => compared(line, (one) => html`<${Words} text=${one.baseline} most=${48} />`) },
      any && { label: `Difference${unit}`, num: true, cell: (line) => compared(line, (one) => difference(metric, one.mean)) },
      any && { label: "95\u202f% interval", num: true, cell: (line) => compared(line, (one) => intervalOf(metric, one)) },
      any && { label: "Wins", num: true, cell: (line) => compared(line, (one) => `${one.wins} of ${one.seeds}`) },
      any && { label: "p", num: true, cell: (line) => compared(line, (one) => (given(one.p) ? (one.p < 0.001 ? "< 0.001" : coevo.fixed(one.p, 3)) : NONE)) },
      ...columns.map((column) => ({ label: column.title, num: true, cell: (line) => inColumn(column, line.columns[column.name]) })),
      ...[...new Set(lines.flatMap((line) => Object.keys(line.paper)))].map((name) => ({
        label: `paper: ${name}`, num: true, cell: (line) => html`<span class="soft">${given(line.paper[name]) ? coevo.fixed(line.paper[name], 2) : NONE}</span>`,
      })),
    ].filter(Boolean); // prettier-ignore
  };

  /** The rows for a download: one for each comparison, as in `coevo experiment --csv`. */
  const comparedRows = ({ lines }) =>
    lines.flatMap(({ comparisons, ...line }) => (comparisons.length ? comparisons : [null]).map((against) => ({ ...line, ...(against && { against }) })));

  /** The cells as a grid: rows by seeds, each with a link to its run. */
  const CellGrid = ({ table }) => {
    const seeds = [...new Set(table.cells.map(({ seed }) => seed))].sort((a, b) => a - b);
    const labels = Object.fromEntries(table.lines.map(({ key, label }) => [key, label]));
    const rows = [...new Set(table.cells.map(({ row }) => row))];
    const at = new Map(table.cells.map((cell) => [`${cell.row} ${cell.seed}`, cell]));
    const shown = (cell) => {
      if (!cell) return NONE;
      const words = given(cell.value) ? inColumn(table.metric, cell.value) : html`<${Tag} tone=${TONES[cell.state]}>${cell.state}<//>`;
      return cell.run ? html`<a href=${link(["runs", cell.run])}>${words}</a>` : words;
    };
    return html`<${Table} label="Cells" rows=${rows} keys=${false} keyOf=${(row) => row} source=${() => table.cells} columns=${[
      { label: "Row", cell: (row) => html`<${Words} text=${labels[row] || row} most=${80} />` },
      ...seeds.map((seed) => ({ label: `seed ${seed}`, num: true, cell: (row) => shown(at.get(`${row} ${seed}`)) })),
    ]} />`;
  };

  const SD = "± one sd over seeds";

  const Curves = ({ id, table }) => {
    const found = coevo.useData(["tables", id, "curves"], {}, { run: "" });
    const series = useMemo(() => {
      const place = Object.fromEntries(table.lines.map(({ label }, i) => [label, i]));
      return (found.data?.curves || []).map(({ label, x, mean, low, high }, i) => ({
        label, style: place[label] ?? i, unmarked: true, points: x.map((at, k) => ({ x: at, y: mean[k], low: low[k], high: high[k] })),
      })); // prettier-ignore
    }, [found.data, table]);
    return html`<${Loaded} of=${found} lines=${3}>${({ problem }) => html`<${coevo.Chart} kind="lines" title="Success on held-out tasks, mean over seeds" series=${series} band=${SD}
      x=${{ label: "env steps, including exploration and replays" }} y=${{ label: "success", format: "percent" }}
      note="Bands: one standard deviation on each side of the mean." none=${problem || "No cell stores its evaluations over training."} />`}<//>`;
  };

  const Results = ({ table }) => {
    const rows = useMemo(
      () => table.lines.filter((line) => given(line.mean)).map((line, i) => ({
        label: line.label, value: line.mean, style: i, said: plural(line.seeds, "seed"),
        low: given(line.sd) ? line.mean - line.sd : null, high: given(line.sd) ? line.mean + line.sd : null,
      })), // prettier-ignore
      [table],
    );
    const { title, share } = table.metric;
    return html`<${coevo.Chart} kind="intervals" title=${`${title[0].toUpperCase()}${title.slice(1)} at the end, mean over seeds`} rows=${rows} band=${SD} x=${{ label: title, format: share ? "percent" : "number" }}
      note="Lines: one standard deviation on each side of the mean." none="No cell is finished yet." />`;
  };

  const Detail = ({ id, table }) => html`
    <p class="note">${[table.benchmark, table.budget && `budget ${table.budget}`, table.source && `after ${table.source}`].filter(Boolean).join(", ")}. Folder: <code><${Words} text=${table.path} /></code></p>
    ${!table.written && html`<p class="note">The table's own file is not written yet, so there are no comparisons: <code>coevo experiment</code> writes it when all cells have run.</p>`}
    <${Table} label=${table.title} rows=${table.lines} columns=${lineColumns(table)} keyOf=${(line) => line.key} source=${() => comparedRows(table)} />
    <div class="chart-pair"><${Results} table=${table} /><${Curves} id=${id} table=${table} /></div>
    <${Section} title="Cells" note="Each cell is a run with one arm and one seed."><${CellGrid} table=${table} /><//>
    ${table.notes.length > 0 && html`<${Section} title="Notes"><ul class="notes">${table.notes.map((note) => html`<li><${coevo.Prose} text=${note} most=${1200} /></li>`)}</ul><//>`}`;

  coevo.views.Table = ({ table: id }) => {
    const found = coevo.useData(["tables", id], {}, { run: "" });
    return html`<${Page} title=${found.data ? found.data.title : id} crumbs=${[["Runs", "#/"]]} wide>
      <${Loaded} of=${found} lines=${10}>${(table) => html`<${Detail} id=${id} table=${table} />`}<//>
    <//>`;
  };

  // ---- models on benchmarks -------------------------------------------------------------------

  /** The state of a cell, with its episodes if it is not finished. */
  const CellState = ({ of }) => html`<${Tag} tone=${TONES[of.state]}>${of.state}<//>${of.total > 0 && html` ${count(of.done)} of ${plural(of.total, "episode")}`}`;

  const evalLink = ({ eval: id }, words) => (id ? html`<a href=${link(["evals", id])}>${words}</a>` : words);

  /** A result as it is printed, its number of tasks, and links to its evaluations. */
  const ResultCell = ({ result, text, cells }) => {
    const [only] = cells;
    const known = given(result.success);
    if (cells.length === 1) return html`${evalLink(only, known ? html`<b>${text}</b>` : html`<${CellState} of=${only} />`)}${known && html`<div><small class="soft">${plural(result.tasks, "task")}</small></div>`}`;
    return html`${known && html`<b>${text}</b>`}<div><small class="soft">${known && html`${plural(result.tasks, "task")}, `}${cells.map(
      (cell, i) => html`${i > 0 && ", "}${evalLink(cell, `seed ${cell.seed}`)}${cell.state !== "finished" && html` <${CellState} of=${cell} />`}`,
    )}</small></div>`;
  };

  const EvalTable = ({ table }) => {
    const { heads, results, cells } = table;
    const columns = [...new Set(results.map(({ column }) => column))];
    const lines = table.lines.map((texts, i) => ({ texts, results: results.slice(i * columns.length, (i + 1) * columns.length) }));
    const cellsOf = ({ row, column }) => cells.filter((one) => one.row === row && one.column === column);
    const open = cells.filter(({ state }) => state !== "finished");
    const shown = heads.map((head, i) => ({
      label: i ? head : "Model",
      num: i > 0,
      cell: ({ texts, results: mine }) => {
        if (i === 0) return html`<b><${Words} text=${texts[0]} most=${80} /></b>`;
        if (i > columns.length) return texts[i];
        return html`<${ResultCell} result=${mine[i - 1]} text=${texts[i]} cells=${cellsOf(mine[i - 1])} />`;
      },
    }));
    return html`
      <p class="note">${table.explanations.join(" ")} Folder: <code><${Words} text=${table.path} /></code></p>
      <${Table} label=${table.title} rows=${lines} columns=${shown} keyOf=${(line) => line.texts[0]} source=${() => results} />
      <div class="chart-grid">${columns.map((column) => html`<${coevo.Chart} key=${column} kind="intervals" title=${`Success on ${column}`} x=${{ label: "success", format: "percent", domain: [0, 1] }}
        rows=${results.filter((one) => one.column === column && given(one.success)).map((one, i) => ({ label: one.row, value: one.success, low: one.low, high: one.high, style: i, said: plural(one.tasks, "task") }))}
        none="No evaluation is finished yet." />`)}</div>
      ${open.length > 0 && html`<${Section} title="Unfinished cells" note="To continue, run the command that began the table again."><ul class="notes">${open.map(
        (cell) => html`<li>${evalLink(cell, html`<${Words} text=${`${cell.row} on ${cell.column}, seed ${cell.seed}`} most=${200} />`)}: <${CellState} of=${cell} /> ${cell.problem && html`<${coevo.Prose} text=${cell.problem} most=${1200} />`}</li>`,
      )}</ul><//>`}
      ${table.notes.length > 0 && html`<${Section} title="Notes"><ul class="notes">${table.notes.map((note) => html`<li><${coevo.Prose} text=${note} most=${1200} /></li>`)}</ul><//>`}`;
  };

  coevo.views.EvalTable = ({ table: id }) => {
    const found = coevo.useData(["eval-tables", id], {}, { run: "" });
    return html`<${Page} title=${found.data ? found.data.title : id} crumbs=${[["Evaluations", "#/evals"]]} wide>
      <${Loaded} of=${found} lines=${10}>${(table) => html`<${EvalTable} table=${table} />`}<//>
    <//>`;
  };

  // ---- evaluations in one table ---------------------------------------------------------------

  const points = (low, high) => (given(low) && given(high) ? `${coevo.signed(100 * low, 1)} to ${coevo.signed(100 * high, 1)}` : NONE);

  const LEDGER_COLUMNS = (evals) => [
    { label: "Policy", cell: (row) => html`<b><${Words} text=${row.label} most=${80} /></b>` },
    { label: "Success", cell: (row) => html`<${Success} of=${row} />` },
    { label: "Tasks", num: true, cell: (row) => count(row.tasks) },
    { label: "Repeats", num: true, cell: (row) => html`${count(row.means.length)}${given(row.repeat_sd) && html`<small class="soft"> sd ${coevo.fixed(100 * row.repeat_sd, 1)}</small>`}` },
    { label: "Difference to the first row (points)", num: true, cell: ({ difference: of }) => (of ? coevo.signed(100 * of.mean, 1) : NONE) },
    { label: "95\u202f% interval over tasks", num: true, cell: ({ difference: of }) => (of ? points(of.low, of.high) : NONE) },
    { label: "Evaluations", wide: true, cell: (row) => html`<span class="arm-list">${row.results.map((name) => html`<a key=${name} href=${link(["evals", evals[name]])}><${Words} text=${evals[name] || name} most=${48} /></a> `)}</span>` },
  ];

  coevo.views.Ledger = ({ ledger: id }) => {
    const found = coevo.useData(["ledgers", id], {}, { run: "" });
    return html`<${Page} title=${found.data ? nameOf(found.data.brief) : id} crumbs=${[["Runs", "#/"]]} wide>
      <${Loaded} of=${found}>${({ rows, evals, remarks }) => {
        const notes = [...rows.flatMap((row) => row.notes.map((note) => `${row.label}: ${note}`)), ...remarks];
        return html`
          <p class="note">Evaluations of one policy that differ only in the seed share a row. Intervals of success are over tasks. <code>coevo panel table</code> prints this table, and takes runs, too.</p>
          <${Table} label="Evaluations in one table" rows=${rows} columns=${LEDGER_COLUMNS(evals)} keyOf=${(row) => row.label} />
          <${coevo.Chart} kind="intervals" title="Success" x=${{ label: "success", format: "percent" }}
            rows=${rows.map((row, i) => ({ label: row.label, value: row.success, low: row.low, high: row.high, style: i, said: plural(row.tasks, "task") }))} />
          ${notes.length > 0 && html`<${Section} title="Notes"><ul class="notes">${notes.map((note) => html`<li><${coevo.Prose} text=${note} most=${600} /></li>`)}</ul><//>`}`;
      }}<//>
    <//>`;
  };

  coevo.route("tables/:table", coevo.views.Table);
  coevo.route("eval-tables/:table", coevo.views.EvalTable);
  coevo.route("ledgers/:ledger", coevo.views.Ledger);
  Object.assign(coevo, { Tables });
})();
