// The arms of a run over time, and success on an arm's tasks from round to round.
"use strict";

(() => {
  const { html, link, useState, Loaded, Chart, Choice, count, plural } = coevo;
  const { styles, histogram } = coevo.charts;

  // ---- arms beside each other ---------------------------------------------------------------

  const share = (label) => ({ label, format: "percent" });

  /** Metrics to draw if the run logged them. */
  const MEASURES = [
    ["curriculum.pool_size", "Pool size", { label: "tasks", format: "count" }],
    ["curriculum.mixed_groups_recent", "Mixed groups", share("share of the last 64 groups")],
    ["curriculum.share_explore_steps", "Share of exploration", share("share of all env steps")],
    ["signals", "Signals", { label: "total signals", format: "count" }],
  ];

  /** Total number of signals of all kinds by the end of each step. */
  const signalsSoFar = (table) =>
    d3.cumsum(table.step.map((_, i) => d3.sum(Object.values(table.signals), (fired) => fired[i])));

  const valuesOf = (table, name) => (name === "signals" ? signalsSoFar(table) : table.series[name]);

  const Measure = ({ tables, style, last, name, title, y }) => {
    const series = tables.filter((table) => valuesOf(table, name)).map((table) => ({
      label: table.arm,
      style: style[table.arm],
      bold: table.arm === last,
      steps: name === "curriculum.pool_size",
      points: table.env_steps.map((x, i) => ({ x, y: valuesOf(table, name)[i] })),
    })); // prettier-ignore
    const rounds = tables.map(({ arm, rounds: own }) => ({
      label: arm, style: style[arm], at: own.filter(({ first }) => !first).map(({ env_steps: at }) => at),
    })); // prettier-ignore
    return html`<${Chart} kind="lines" title=${title} series=${series} y=${y} height=${190}
      x=${{ label: "env steps, including exploration and replays" }} rounds=${rounds} none="Not logged in this run." />`;
  };

  /**
   * Curriculum metrics of each arm over env steps, with rounds as ticks.
   *
   * @param run the response of runs/{run}.
   */
  const ArmsOverTime = ({ run }) => {
    const arms = run.arms.filter((arm) => arm.trained).map((arm) => arm.name);
    const found = coevo.useSeveral(arms.map((arm) => ["runs", run.id, "arms", arm, "steps"]), { run: run.id }); // prettier-ignore
    if (!arms.length) return null;
    const last = arms[arms.length - 1];
    const style = styles(arms, last);
    return html`<${Loaded} of=${found}>${(tables) => html`<div class="chart-grid">
        ${MEASURES.map(([name, title, y]) => html`<${Measure} key=${name} tables=${tables} style=${style} last=${last} name=${name} title=${title} y=${y} />`)}
      </div>
      <p class="note">Ticks below the axes mark evolution rounds, one row per arm. A group is mixed if some of its episodes succeed and some fail.</p>`}<//>`;
  };

  // ---- lengths ------------------------------------------------------------------------------

  /** Histogram of the lengths of episodes, by outcome. */
  const LengthsChart = ({ episodes, note }) => {
    const of = (success) => episodes.filter((one) => one.success === success).map((one) => one.steps);
    return html`<${Chart} kind="columns" stacked title="Episode length" note=${note} height=${200}
      columns=${histogram([of(true), of(false)])}
      fills=${[{ label: "solved", style: 2, hatch: 0 }, { label: "failed", style: 1, hatch: 1 }]}
      x=${{ label: "env steps per episode" }} y=${{ label: "episodes", format: "count" }} />`;
  };

  // ---- an arm's tasks from round to round -----------------------------------------------------

  const MOST_PERIODS = 24;
  const MOST_TASKS = 30;

  /** The columns of the map: from one round to the next, or equal intervals of steps. */
  const periodsOf = (table) => {
    const last = d3.max(table.step) || 1;
    const later = table.rounds.filter(({ first, step }) => !first && step < last);
    const starts = new Map([[0, "D_0"], ...later.map(({ id, step }) => [step, id.replace(/^round-/, "")])]);
    const between = Array.from(starts, ([from, label]) => ({ from, label }));
    if (between.length > 1 && between.length <= MOST_PERIODS) return { periods: between, label: "after round" };
    const n = Math.min(between.length > 1 ? MOST_PERIODS : 8, last);
    const periods = d3.pairs(d3.range(n + 1).map((i) => Math.round((last * i) / n)), (from, to) => ({
      from,
      label: to - from > 1 ? `${from + 1}–${to}` : `${to}`,
    })); // prettier-ignore
    return { periods, label: "learner steps" };
  };

  /** Success on each task by period, and the change in the last period with episodes. */
  const byTask = (groups, periods) => {
    const starts = periods.map(({ from }) => from);
    const tasks = new Map();
    for (const { task, step, episodes, successes } of groups) {
      const row = tasks.get(task.id) || { task, cells: periods.map(() => ({ n: 0, of: 0 })), of: 0 };
      const cell = row.cells[Math.max(0, d3.bisectLeft(starts, step) - 1)];
      cell.n += successes;
      cell.of += episodes;
      row.of += episodes;
      tasks.set(task.id, row);
    }
    return [...tasks.values()].map((row) => {
      const shares = row.cells.filter(({ of }) => of).map(({ n, of }) => n / of);
      const last = shares.pop();
      return { ...row, fell: (d3.max(shares) ?? last) - last, rose: last - (d3.min(shares) ?? last) };
    });
  };

  const ORDERS = [
    ["fell", "Largest fall", "Success in the last period with episodes, minus the best earlier success"],
    ["rose", "Largest rise", "Success in the last period with episodes, minus the worst earlier success"],
    ["of", "Most episodes", "Total number of episodes"],
  ];

  /**
   * Success on an arm's tasks from round to round as a map of shades.
   *
   * @param run id of the run.
   * @param table the response of runs/{run}/arms/{arm}/steps.
   */
  const RoundsMap = ({ run, table }) => {
    const [order, setOrder] = useState("fell");
    const found = coevo.useRows(["runs", run, "arms", table.arm, "groups"], { run });
    const { periods, label } = periodsOf(table);
    return html`<${Loaded} of=${found}>${(groups) => {
      const all = byTask(groups.rows, periods);
      const rows = d3.sort(all, (row) => -row[order]).slice(0, MOST_TASKS); // prettier-ignore
      const cells = rows.flatMap((row, i) =>
        row.cells.flatMap(({ n, of }, j) => (of ? [{ row: i, column: j, value: n / of, said: `${n} of ${plural(of, "episode")} solved` }] : [])),
      );
      const note = [
        "Percentage of solved episodes. A missing box means that the task had no episodes in the period.",
        rows.length < all.length && `Shows ${count(rows.length)} of ${plural(all.length, "task")} that ${table.arm} trained on.`,
        groups.rows.length < groups.total && `Includes only the first ${count(groups.rows.length)} groups.`,
      ].filter(Boolean).join(" "); // prettier-ignore
      return html`
        <${Choice} label="Order of the tasks" value=${order} options=${ORDERS} onChange=${setOrder} />
        <${Chart} kind="heat" title="Success by task and period" note=${note} cells=${cells}
          rows=${rows.map(({ task }) => ({ label: task.instruction || task.name, href: link(["runs", run, "tasks", task.id]) }))}
          columns=${periods.map((period) => period.label)} x=${{ label }} y=${{ label: "task" }} none="No episodes yet." />`;
    }}<//>`;
  };

  Object.assign(coevo, { ArmsOverTime, LengthsChart, RoundsMap });
})();
