// An evolution round: its starting points, its drafts, and success before and after it.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Section, Table, Figures, Facts, Outcome, Rate, Empty, count, percent, plural } = coevo;

  /** The first evaluation after a round whose results by task are stored. */
  const evaluationAfter = (detail, arm, step) =>
    (detail?.evaluations || []).find((point) => point.arm === arm && point.step >= step && point.kept);

  const HELD_OUT_COLUMNS = [
    { label: "Held-out task", wide: true, cell: (task) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
    { label: "Before", cell: (task) => html`<${Outcome} success=${task.before} />` },
    { label: "After", cell: (task) => html`<${Outcome} success=${task.success} score=${task.score} end=${task.end_reason} />` },
    { label: "End reason", optional: true, cell: (task) => coevo.endOf(task) },
    { label: "Env steps", num: true, cell: (task) => count(task.steps) },
  ];

  /** The name of the policy that all arms start from. */
  const START = "warm-up";

  /** `start` is the evaluation of the initial policy, if `point` is the arm's first evaluation. */
  const Changed = ({ run, arm, point, start }) => {
    const found = coevo.useData(["runs", run, "evaluations", arm, String(point.step)], {}, { run });
    const begun = coevo.useData(start ? ["runs", run, "evaluations", START, String(start.step)] : null).data;
    const outcomes = new Map((begun?.tasks || []).map((task) => [task.id, task.success]));
    const table = (rows, label, none) => html`<${Table} label=${label} rows=${rows.slice(0, 100)} keys=${false} columns=${HELD_OUT_COLUMNS} keyOf=${(task) => task.id} source=${() => rows} empty=${html`<p class="soft">${none}</p>`} />`;
    return html`<${Loaded} of=${found}>${(evaluation) => {
      const known = evaluation.tasks
        .map((task) => ({ ...task, before: task.before ?? outcomes.get(task.id) ?? null }))
        .filter((task) => task.before !== null);
      const worse = known.filter((task) => task.before && !task.success);
      const better = known.filter((task) => !task.before && task.success);
      if (!known.length) return html`<${Empty} title="There is no earlier evaluation to compare with." />`;
      return html`
        <p class="note">The first evaluation after this round, at step ${count(evaluation.step)}, compared with ${start ? "the initial policy" : "the previous evaluation"}: of ${plural(known.length, "task")}, ${count(worse.length)} got worse and ${count(better.length)} better. <a href=${link(["runs", run, "evaluations", arm, evaluation.step])}>Full evaluation</a></p>
        ${table(worse, "Held-out tasks that got worse", "None.")}
        <details class="more"><summary>${plural(better.length, "task")} got better</summary>${table(better, "Held-out tasks that got better", "None.")}</details>`;
    }}<//>`;
  };

  /** Success on each task of the pool up to a step and after it, with the largest fall first. */
  const aroundStep = (groups, step) => {
    const tasks = new Map();
    for (const group of groups) {
      const found = tasks.get(group.task.id) || { task: group.task, until: [0, 0], since: [0, 0] };
      const side = group.step <= step ? found.until : found.since;
      side[0] += group.successes;
      side[1] += group.episodes;
      tasks.set(group.task.id, found);
    }
    const share = ([n, of]) => n / of;
    return [...tasks.values()]
      .filter(({ until, since }) => until[1] && since[1])
      .map((one) => ({ ...one, change: share(one.since) - share(one.until) }))
      .sort((a, b) => a.change - b.change);
  };

  const MOST_TASKS = 50;

  const Practised = ({ run, arm, step }) => {
    const found = coevo.useRows(["runs", run, "arms", arm, "groups"], { run });
    return html`<${Loaded} of=${found}>${({ rows }) => {
      const all = aroundStep(rows, step);
      const fell = all.filter(({ change }) => change < 0);
      return html`
        <p class="note">${arm} trained on ${plural(all.length, "task")} both before and after this round; ${count(fell.length)} of them ${fell.length === 1 ? "has" : "have"} been solved less often since then. Groups are small, so check the number of episodes.</p>
        <${Table} label="Training tasks solved less often since this round" rows=${fell.slice(0, MOST_TASKS)} keys=${false} keyOf=${({ task }) => task.id} href=${({ task }) => link(["runs", run, "tasks", task.id])} source=${() => fell} columns=${[
          { label: "Training task", wide: true, cell: ({ task }) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
          { label: "Before", cell: ({ until }) => html`<${Rate} n=${until[0]} of=${until[1]} />` },
          { label: "After", cell: ({ since }) => html`<${Rate} n=${since[0]} of=${since[1]} />` },
          { label: "Change (points)", num: true, cell: ({ change }) => coevo.signed(100 * change, 0) },
        ]} />
        ${fell.length > MOST_TASKS && html`<p class="soft">Shows the ${MOST_TASKS} largest falls of ${count(fell.length)}.</p>`}`;
    }}<//>`;
  };

  const BeforeAfter = ({ run, arm, round }) => {
    const detail = coevo.useData(["runs", run], {}, { run }).data;
    const point = evaluationAfter(detail, arm, round.step);
    const kept = (detail?.evaluations || []).filter((one) => one.kept);
    const first = point && kept.find((one) => one.arm === arm) === point;
    const start = first ? kept.find((one) => one.arm === START) : undefined;
    return html`<${Section} title="Changes after this round" id="changed">
      ${!coevo.lacks("evaluations") && html`<h3 class="sub">On held-out tasks</h3>`}
      ${coevo.lacks("evaluations") ? "" : point ? html`<${Changed} run=${run} arm=${arm} point=${point} start=${start} />` : detail && html`<p class="soft">There is no evaluation after this round, or its per-task results are not stored.</p>`}
      ${!round.first && html`<h3 class="sub">On tasks in the pool</h3><${Practised} run=${run} arm=${arm} step=${round.step} />`}
    <//>`;
  };

  const Contexts = ({ detail, run, kinds }) => {
    const { contexts, round } = detail;
    if (!contexts.length) {
      return html`<p class="soft">${round.first ? `This round searched all training scenarios for ${plural(round.contexts, "task")} without guidance.` : "This round explored without guidance."}</p>`;
    }
    return html`<div class="cards one">${contexts.map((context) => html`<${coevo.Context} key=${context.id} context=${context} kinds=${kinds} run=${run} />`)}</div>`;
  };

  const Neighbours = ({ run, arm, id }) => {
    const rows = coevo.useData(["runs", run, "arms", arm, "rounds"]).data?.rows || [];
    const at = rows.findIndex((round) => round.id === id);
    const to = (round, words) => round && html`<a class="button" href=${link(["runs", run, "arms", arm, "rounds", round.id])}>${words}</a>`;
    return at < 0 ? null : html`${to(rows[at - 1], `← ${rows[at - 1]?.id}`)}${to(rows[at + 1], `${rows[at + 1]?.id} →`)}`;
  };

  coevo.views.Round = ({ run, arm, round: id }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "arms", arm, "rounds", id]);
    return html`<${Page} title=${`${id} of ${arm}`} crumbs=${coevo.armCrumbs(run, arm)} run=${run} wide actions=${html`<${Neighbours} run=${run} arm=${arm} id=${id} />`}>
      <${Loaded} of=${found}>${(detail) => {
        const { round } = detail;
        return html`
          <${Figures} of=${[
            ["Applied after step", count(round.step)],
            ["Accepted", `${count(round.accepted)} of ${plural(round.drafts, "draft")}`, round.drafts ? percent(round.accepted / round.drafts, 0) : ""],
            round.held > 0 && ["Held", count(round.held)],
            ["Pool size after", count(round.pool_size)],
            ["Env steps", count(round.steps_spent), `${count(round.gate_steps)} by gates`],
            ["Duration", coevo.duration(round.seconds)],
            round.calls > 0 && ["Model use", plural(round.calls, "request"), `${count(round.tokens)} tokens`],
          ]} />
          <${BeforeAfter} run=${run} arm=${arm} round=${round} />
          <${Section} title="Drafts" aside=${html`<a href=${link(["runs", run, "drafts"], { arm, round: id })}>Filter by gate</a>`}>
            <${Table} label="Drafts of the round" rows=${detail.drafts} columns=${coevo.draftColumns(kinds, { round: false })} keyOf=${(draft) => draft.position} href=${coevo.draftHref(run)} empty=${html`<${Empty} title="This round has no drafts." />`} />
          <//>
          <${Section} title="Starting points"><${Contexts} detail=${detail} run=${run} kinds=${kinds} /><//>
          ${Object.keys(round.usage).length > 0 && html`<${Section} title="Model use"><${Facts} value=${round.usage} most=${60} /><//>`}`;
      }}<//>
    <//>`;
  };

  coevo.route("runs/:run/arms/:arm/rounds/:round", coevo.views.Round);
})();
