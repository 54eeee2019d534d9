// A run: a table of its arms, success over time, rejections by gate, signals.
"use strict";

(() => {
  const { html, link, useMemo, Words, Page, Loaded, Section, Table, Facts, Tag, count, decimal, NONE } = coevo;

  const Spent = ({ of }) => (of.tokens ? html`${coevo.charts.formats.compact(of.tokens)} tokens${of.usd > 0 && html`, $${of.usd.toFixed(2)}`}` : NONE);

  const columnsOf = (run) => [
    { label: "Arm", cell: (arm) => html`<b><${Words} text=${arm.name} most=${48} /></b>${!arm.trained && html` <small class="soft">not trained</small>`}${arm.mark && html` <${Tag} tone="warn" title=${arm.mark}>control<//>`}` },
    { label: "Held-out success", cell: (arm) => html`<${coevo.Success} of=${arm} />` },
    { label: "Mean score", num: true, cell: (arm) => decimal(arm.score, 3) },
    { label: "Env steps", num: true, cell: (arm) => (arm.trained ? count(arm.env_steps) : NONE) },
    { label: "Learner steps", num: true, cell: (arm) => (arm.trained ? count(arm.steps) : NONE) },
    { label: "Rounds", num: true, cell: (arm) => (arm.trained ? count(arm.rounds) : NONE) },
    { label: "Pool", num: true, cell: (arm) => (arm.trained ? count(arm.pool_size) : NONE) },
    { label: "Accepted drafts", num: true, cell: (arm) => (arm.drafts ? html`<a href=${link(["runs", run.id, "drafts"], { arm: arm.name })}>${count(arm.accepted)} of ${count(arm.drafts)}</a>` : NONE) },
    { label: "Stored episodes", num: true, cell: (arm) => (arm.trajectories ? html`<a href=${link(["runs", run.id, "trajectories"], { arm: arm.name })}>${count(arm.trajectories)}</a>` : NONE) },
    run.arms.some((arm) => arm.tokens) && { label: "Model use", num: true, cell: (arm) => html`<${Spent} of=${arm} />` },
  ].filter(Boolean);

  /** Success on held-out tasks and in training over env steps, one line per arm. */
  const Curves = ({ run }) => {
    const [heldOut, practice] = useMemo(() => {
      const trained = run.arms.filter((arm) => arm.trained).map((arm) => arm.name);
      const last = trained[trained.length - 1];
      const style = coevo.charts.styles(trained, last);
      const lines = trained.map((arm) => ({
        label: arm,
        style: style[arm],
        bold: arm === last,
        points: run.evaluations
          .filter((point) => point.arm === arm)
          .map((point) => ({
            x: point.env_steps, y: point.success, low: point.low, high: point.high,
            href: point.kept ? link(["runs", run.id, "evaluations", arm, point.step]) : undefined,
          })),
      })); // prettier-ignore
      const training = run.training.map((one) => ({
        label: one.arm,
        style: style[one.arm],
        bold: one.arm === last,
        points: one.env_steps.map((x, i) => ({ x, y: one.success[i] })),
      }));
      return [lines, training];
    }, [run]);
    const x = { label: "env steps, including exploration and replays" };
    const y = { label: "success", format: "percent" };
    return html`<div class="chart-pair">
      <${coevo.Chart} kind="lines" title="On held-out tasks" series=${heldOut} x=${x} y=${y} none="No arm has been evaluated yet." />
      <${coevo.Chart} kind="lines" title="In training, on each arm's own tasks" series=${practice} x=${x} y=${y} none="No step has finished yet." />
    </div>`;
  };

  const Counts = ({ run, kinds }) => {
    const trained = run.arms.filter((arm) => arm.trained);
    const names = trained.map(({ name }) => name);
    const style = coevo.charts.styles(names, names[names.length - 1]);
    const [gates, signals] = useMemo(
      () => [
        Object.entries(run.gates).map(([gate, n]) => ({ label: gate, values: [n], href: link(["runs", run.id, "drafts"], { gate }) })),
        coevo.signalBars(run, kinds),
      ],
      [run, kinds],
    );
    return html`<div class="chart-pair">
      <${coevo.Chart} kind="rows" title="Rejected drafts by gate" rows=${gates} fills=${[{ label: "drafts", style: 1 }]} x=${{ label: "drafts" }} none="No draft was rejected." />
      <${coevo.Chart} kind="rows" title="Signals by arm" rows=${signals.rows} fills=${signals.fills} x=${{ label: "signals" }} none="No signals yet." />
    </div>`;
  };

  const Overview = ({ run, kinds }) => html`
    <p class="headline">${run.headline}</p>
    ${run.progress.state !== "finished" && html`<${coevo.Progress} progress=${run.progress} wide />`}
    <${coevo.Contents} of=${coevo.RUN_SECTIONS} />
    <${Table} label="Arms of the run" rows=${run.arms} columns=${columnsOf(run)} keyOf=${(arm) => arm.name}
      href=${(arm) => (arm.trained ? link(["runs", run.id, "arms", arm.name]) : null)} />
    <${Section} title="Success" id="success"><${Curves} run=${run} /><${coevo.HeldOut} run=${run} /><//>
    <${Section} title="Curriculum" id="curriculum"><${Counts} run=${run} kinds=${kinds} /><${coevo.ArmsOverTime} run=${run} /><//>
    <${coevo.RunMeasures} run=${run} />
    ${run.notes.length > 0 && html`<${Section} title="Notes" id="notes"><ul class="notes">${run.notes.map((note) => html`<li><${Words} text=${note} most=${600} /></li>`)}</ul><//>`}
    <${Section} title="Setup" id="settings">
      <p class="note">${run.benchmark}, ${run.model}, seed ${run.seed}; evaluated on the split <code>${run.split}</code>. Folder: <code><${Words} text=${run.path} /></code></p>
      <details class="more"><summary>Settings</summary><${Facts} value=${run.config} most=${400} /></details>
      <details class="more"><summary>Versions and hashes</summary><${Facts} value=${run.manifest} most=${200} /></details>
    <//>`;

  coevo.views.Run = ({ run }) => {
    const found = coevo.useData(["runs", run], {}, { run });
    const kinds = coevo.useKinds();
    const several = found.data && found.data.arms.filter((arm) => arm.trained).length > 1;
    const actions = several && html`<a class="button" href=${link(["compare"], { a: `runs/${run}` })}>Compare arms</a>`;
    return html`<${Page} title=${found.data ? found.data.name : run} crumbs=${[["Runs", "#/"]]} run=${run} actions=${actions} wide>
      <${Loaded} of=${found} lines=${10}>${(data) => html`<${Overview} run=${data} kinds=${kinds} />`}<//>
    <//>`;
  };
  coevo.route("runs/:run", coevo.views.Run);
  coevo.Spent = Spent;
})();
