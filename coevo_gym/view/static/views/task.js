// A task: its lineage, its discovery and proof, and success on it over time.
"use strict";

(() => {
  const { html, link, useMemo, Words, Prose, Page, Loaded, Section, Table, Tag, Rate, Kind, Figures, Facts, Empty, count } = coevo;

  const saidOf = (task) => (task && coevo.given(task.success) ? `${Math.round(100 * task.success)}\u202f% solved` : "no episodes");

  const roundOf = (task) => (task.first || !task.round ? 0 : Number(/\d+$/.exec(task.round)?.[0]) || 0);

  /** Nodes in the format of the chart, each with its parents. */
  const nodesOf = (lineage, run, here, kinds) => {
    const shown = new Set(lineage.nodes.map(({ id }) => id));
    return lineage.nodes.map(({ id, task }) => ({
      id,
      parents: (task?.parents || []).filter((parent) => shown.has(parent)),
      label: task ? task.instruction || task.name : "",
      round: task?.origin === "evolved" ? roundOf(task) : task?.origin || "",
      kind: task ? kinds[task.signal]?.label || task.signal : "",
      said: saidOf(task),
      here: id === here,
      href: task ? link(["runs", run, "tasks", id]) : undefined,
    }));
  };

  const Lineage = ({ detail, run, kinds }) => {
    const nodes = useMemo(() => nodesOf(detail.lineage, run, detail.task.id, kinds), [detail, kinds]);
    return html`<${coevo.Chart} kind="lineage" title="Ancestors and descendants" nodes=${nodes}
      note=${detail.lineage.more > 0 ? `${count(detail.lineage.more)} more descendants are not shown.` : undefined} />`;
  };

  /** Share of solved episodes in each group of the task. */
  const OverTime = ({ detail, run }) => {
    const whole = coevo.useData(["runs", run]).data;
    const series = useMemo(() => {
      const arms = [...new Set(detail.practice.map((point) => point.arm))];
      return coevo.practiceSeries(run, whole ? coevo.trainedOf(whole) : arms, arms, detail.practice);
    }, [detail, whole]);
    if (!detail.practice.length) return html`<${Empty} title="No arm has trained on this task yet." />`;
    return html`<${coevo.Chart} kind="lines" title="Share of solved episodes by group" series=${series} x=${{ label: "learner step" }} y=${{ label: "solved", format: "percent", domain: [0, 1] }} />`;
  };

  const practiceColumns = [
    { label: "Group", cell: (point) => html`<b>${point.id}</b>` },
    { label: "Arm", cell: (point) => html`<${Words} text=${point.arm} most=${40} />` },
    { label: "Learner step", num: true, cell: (point) => count(point.step) },
    { label: "Solved", cell: (point) => html`<${Rate} n=${point.successes} of=${point.episodes} />` },
    { label: "Episodes", cell: (point) => (point.stored ? "stored" : html`<span class="soft">not stored</span>`) },
  ];

  const Practice = ({ detail, run }) => {
    const rows = detail.practice;
    return rows.length > 0 && html`<details class="more" open=${rows.length <= 12}><summary>All groups</summary>
      <${Table} label="Groups of the task" rows=${rows.slice(0, 300)} columns=${practiceColumns} keyOf=${(point) => `${point.arm} ${point.id}`} href=${(point) => link(["runs", run, "arms", point.arm, "groups", point.id])} source=${() => rows} />
      ${rows.length > 300 && html`<p class="soft">Shows the first 300 of ${count(rows.length)} groups.</p>`}</details>`;
  };

  /** For each arm, an early and a late episode with different interfaces. */
  const Interfaces = ({ detail, run }) => {
    const path = (id) => `runs/${run}/trajectories/${id}`;
    return detail.interfaces.length > 0 && html`<${Section} title="Before and after an interface change" note="An early and a late episode of one arm with different versions of its interface.">
      <ul>${detail.interfaces.map((pair) => html`<li key=${pair.arm}><a href=${link(["side"], { a: path(pair.before), b: path(pair.after) })}>${pair.arm}: step ${count(pair.before_step)} compared with step ${count(pair.after_step)}</a></li>`)}</ul><//>`;
  };

  const Proof = ({ detail }) => {
    if (detail.withheld) return html`<p class="notice">${detail.withheld}</p>`;
    return html`
      ${detail.solution?.length > 0 && html`<details class="more" open=${detail.solution.length <= 12}><summary>Reference solution</summary><ol class="mono">${detail.solution.map((action) => html`<li><${Words} text=${action} most=${240} /></li>`)}</ol></details>`}
      ${detail.verifier && html`<details class="more"><summary>Verifier</summary><${Facts} value=${detail.verifier} most=${120} /></details>`}
      ${detail.world && html`<details class="more"><summary>World</summary><${Facts} value=${detail.world} most=${120} /></details>`}`;
  };

  const Task = ({ detail, run, kinds }) => {
    const { task } = detail;
    return html`
      <blockquote class="asked"><${Prose} text=${detail.instruction} most=${2000} label="Instruction" /></blockquote>
      <${Figures} of=${[
        ["Origin", html`<${coevo.Origin} task=${task} />`],
        ["Found in", task.round ? html`<a href=${link(["runs", run, "arms", task.arms[0] || "", "rounds", task.round])}>${task.round}</a>` : "initial task set"],
        task.signal && ["Explored from", html`<${Kind} kind=${task.signal} kinds=${kinds} />`],
        ["Solved", html`<${Rate} n=${task.successes} of=${task.episodes} />`],
        ["In the pool of", task.arms.join(", ") || coevo.NONE],
        ["Generation", count(task.generation)],
      ]} />
      ${detail.tags.length > 0 && html`<p class="arm-list">${detail.tags.map((tag) => html`<${Tag}><${Words} text=${tag} most=${60} /><//>`)}</p>`}
      ${detail.decision && html`<p class="notice">Manual review: ${detail.decision.what}${detail.decision.reason && html`: <${Words} text=${detail.decision.reason} most=${400} />`}</p>`}
      <${Section} title="Lineage"><${Lineage} detail=${detail} run=${run} kinds=${kinds} /><//>
      <${Section} title="Success over time"><${OverTime} detail=${detail} run=${run} /><${Practice} detail=${detail} run=${run} /><//>
      <${Interfaces} detail=${detail} run=${run} />
      ${detail.story ? html`<${coevo.Story} story=${detail.story} kinds=${kinds} run=${run} />` : html`<${Section} title="Discovery"><p class="soft">This task is part of the benchmark.</p><//>`}
      <${Section} title="Task data"><p class="note">Scenario <code><${Words} text=${detail.scenario} /></code>${detail.subset && html`, subset <code>${detail.subset}</code>`}, split <code>${task.split}</code>, id <code>${task.id.slice(0, 16)}</code></p><${Proof} detail=${detail} /><//>`;
  };

  coevo.views.Task = ({ run, task }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "tasks", task], {}, { run });
    const { data } = found;
    const actions = data && html`
      ${data.practice.some((point) => point.stored) && html`<a class="button" href=${link(["runs", run, "trajectories"], { task: data.task.id })}>Episodes</a>`}
      ${data.arms.length > 1 && html`<a class="button" href=${link(["runs", run, "tasks", data.task.id, "arms"])}>Compare arms</a>`}
      ${data.story && html`<a class="button" href=${link(["runs", run, "drafts", data.story.draft.id])}>Draft</a>`}`;
    return html`<${Page} title=${data ? data.task.name : "Task"} crumbs=${[["Runs", "#/"], [run, link(["runs", run])], ["Tasks", link(["runs", run, "tasks"])]]} run=${run} tab="tasks" actions=${actions}>
      <${Loaded} of=${found}>${(detail) => html`<${Task} detail=${detail} run=${run} kinds=${kinds} />`}<//>
    <//>`;
  };

  coevo.route("runs/:run/tasks/:task", coevo.views.Task);
})();
