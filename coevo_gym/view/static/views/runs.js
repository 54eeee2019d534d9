// The list of runs and evaluations.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Section, Table, Tag, Empty, percent, count, NONE } = coevo;

  const TONES = { training: "accent", finished: "good", stopped: "warn", damaged: "bad" };

  const StateTag = ({ progress }) => html`<${Tag} tone=${TONES[progress.state]}>${progress.state}<//>`;

  /** Success with its 95 % interval. */
  const Success = ({ of }) =>
    of.success === null || of.success === undefined
      ? html`<span class="soft none">${NONE}</span>`
      : html`<span class="num success"><b>${percent(of.success)}</b>${coevo.given(of.low) && html`<small class="soft"> ${coevo.fixed(100 * of.low, 1)}–${percent(of.high)}</small>`}</span>`;

  /** State of a run, with its progress while it trains. */
  const Progress = ({ progress, wide }) => {
    const { state, share, phase, done, total, unit, elapsed_s, eta_s, facts } = progress;
    const at = coevo.given(share) ? share : total ? done / total : null;
    if (state === "finished") return html`<${StateTag} progress=${progress} />`;
    return html`<div class="progress-box">
      <div class="progress-line"><${StateTag} progress=${progress} />
        ${at !== null && html`<progress value=${at} max="1" aria-label="Progress of the run"></progress><span class="num">${percent(at, 0)}</span>`}</div>
      ${wide &&
      html`<p class="soft progress-words">${[
        phase,
        coevo.given(done) && `${count(done)}${total ? ` of ${count(total)}` : ""} ${unit}`,
        coevo.given(elapsed_s) && `${coevo.duration(elapsed_s)} elapsed`,
        coevo.given(eta_s) && `about ${coevo.duration(eta_s)} left`,
        progress.tokens > 0 && `${count(progress.tokens)} tokens`,
        progress.usd > 0 && `$${progress.usd.toFixed(2)}`,
        ...Object.entries(facts || {}).map(([name, value]) => `${name} ${value}`),
      ].filter(Boolean).join(" · ")}</p>`}
    </div>`;
  };

  const RUN_COLUMNS = [
    { label: "Run", cell: (run) => html`<b><${Words} text=${run.name} most=${60} /></b>` },
    { label: "State", cell: (run) => (run.problem ? html`<${Tag} tone="bad">unreadable<//>` : html`<${Progress} progress=${run.progress} />`) },
    { label: "Success of last arm", cell: (run) => html`<${Success} of=${run} />` },
    { label: "Arms", wide: true, cell: (run) => run.problem ? html`<${coevo.Prose} text=${run.problem} most=${400} />` : html`<span class="arm-list">${run.arms.map((arm) => html`<${Tag}><${Words} text=${arm} most=${40} /><//>`)}</span>` },
    { label: "Benchmark", cell: (run) => html`<${Words} text=${run.benchmark} />` },
    { label: "Policy", cell: (run) => html`<${Words} text=${run.model} most=${32} />` },
    { label: "Seed", num: true, cell: (run) => (run.seed === null ? NONE : run.seed) },
    { label: "Tasks", num: true, cell: (run) => count(run.tasks) },
    { label: "Episodes", num: true, cell: (run) => count(run.trajectories) },
  ];

  const NoRuns = () => html`<${Empty} title="There are no runs here yet.">
    <p>Train one on the built-in shop in a few minutes on a laptop: <code>coevo train quickstart</code></p>
    <p>To view runs in another folder: <code>coevo view PATH</code></p>
  <//>`;

  const Runs = () => {
    const found = coevo.useData(["runs"], {}, { run: "" });
    const tables = coevo.useData(["tables"], {}, { run: "" }).data || {};
    const { runs: all = [], evals: evaluated = [] } = found.data || {};
    const onlyEvals = !all.length && evaluated.length > 0;
    const list = (runs) => html`<${Table} label="Runs" rows=${runs} columns=${RUN_COLUMNS} keyOf=${(run) => run.id} href=${(run) => (run.problem ? null : link(["runs", run.id]))} />`;
    return html`<${Page} title=${onlyEvals ? "Evaluations" : "Runs"} wide>
      <${coevo.Tables} ...${tables} />
      <${Loaded} of=${found}>${({ runs, evals }) => html`
        ${onlyEvals ? null : runs.length === 0 ? html`<${NoRuns} />` : Object.values(tables).some((some) => some.length > 0) ? html`<${Section} title="All runs">${list(runs)}<//>` : list(runs)}
        ${evals.length > 0 && html`<${Section} title=${onlyEvals ? "All evaluations" : "Evaluations"} note="Results of coevo eval. Open an evaluation to see its episodes.">
          <${Table} label="Evaluations" rows=${evals} keys=${false} keyOf=${(one) => one.id} href=${(one) => (one.problem ? null : link(["evals", one.id]))} columns=${EVAL_COLUMNS} />
        <//>`}`}<//>
    <//>`;
  };

  /** The policy of an evaluation and its model, which are the same for a model without a run. */
  const policyOf = ({ policy, model }) => [...new Set([policy, model])].filter(Boolean).join(", ");

  const EVAL_COLUMNS = [
    { label: "Evaluation", cell: (one) => html`<b><${Words} text=${one.name} most=${60} /></b>` },
    { label: "State", cell: (one) => one.problem ? html`<${Tag} tone="bad">unreadable<//>` : one.finished ? html`<${Tag} tone="good">finished<//>` : html`<${Tag} tone="accent">${count(one.done)} of ${count(one.total)}<//>` },
    { label: "Success", cell: (one) => html`<${Success} of=${one} />` },
    { label: "Policy", wide: true, cell: (one) => one.problem ? html`<${coevo.Prose} text=${one.problem} most=${400} />` : html`<${Words} text=${policyOf(one)} most=${60} />` },
    { label: "Benchmark", cell: (one) => html`<${Words} text=${`${one.benchmark} ${one.split}`} />` },
    { label: "Tasks", num: true, cell: (one) => count(one.n_tasks) },
    { label: "Samples", num: true, cell: (one) => count(one.samples) },
  ];

  coevo.views.Runs = Runs;
  coevo.route("", Runs);
  coevo.route("runs", Runs);
  Object.assign(coevo, { Success, Progress, EVAL_COLUMNS, policyOf });
})();
