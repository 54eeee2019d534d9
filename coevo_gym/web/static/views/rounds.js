// One round of evolution: from where it explored, what became of every draft, and how the arm did
// before and after it.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Section, Table, Figures, Facts, Outcome, Rate, Empty, count, percent, plural } = coevo;

  /** The evaluation that came first after a round, if each task's end was kept. */
  const evaluationAfter = (detail, arm, step) =>
    (detail?.evaluations || []).find((point) => point.arm === arm && point.step >= step && point.kept);

  const HELD_OUT_COLUMNS = [
    { label: "Held-out task", wide: true, cell: (task) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
    { label: "Before", cell: (task) => html`<${Outcome} success=${task.before} />` },
    { label: "After", cell: (task) => html`<${Outcome} success=${task.success} score=${task.score} end=${task.end_reason} />` },
    { label: "Ended by", cell: (task) => task.end_reason.replaceAll("_", " ") },
    { label: "Steps", num: true, cell: (task) => count(task.steps) },
  ];

  /** The baseline that arms begin from, by its name in the API. */
  const START = "warm-up";

  /** `start` is the evaluation of what the arm began from, if this is the arm's first. */
  const Changed = ({ run, arm, point, start }) => {
    const found = coevo.useData(["runs", run, "evaluations", arm, String(point.step)], {}, { run });
    const begun = coevo.useData(start ? ["runs", run, "evaluations", START, String(start.step)] : null).data;
    const outcomes = new Map((begun?.tasks || []).map((task) => [task.id, task.success]));
    const table = (rows, label, none) => html`<${Table} label=${label} rows=${rows.slice(0, 100)} keys=${false} columns=${HELD_OUT_COLUMNS} keyOf=${(task) => task.id} empty=${html`<p class="soft">${none}</p>`} />`;
    return html`<${Loaded} of=${found}>${(evaluation) => {
      const known = evaluation.tasks
        .map((task) => ({ ...task, before: task.before ?? outcomes.get(task.id) ?? null }))
        .filter((task) => task.before !== null);
      const worse = known.filter((task) => task.before && !task.success);
      const better = known.filter((task) => !task.before && task.success);
      if (!known.length) return html`<${Empty} title="There is no evaluation before this one to compare with." />`;
      return html`
        <p class="note">The evaluation at step ${count(evaluation.step)}, the first after this round, beside ${start ? "the policy that the arm began with" : "the one before it"}: ${plural(worse.length, "task")} got worse, ${plural(better.length, "task")} better, of ${count(known.length)}. <a href=${link(["runs", run, "evaluations", arm, evaluation.step])}>The whole evaluation</a></p>
        ${table(worse, "Held-out tasks that got worse", "None.")}
        <details class="more"><summary>Got better: ${count(better.length)}</summary>${table(better, "Held-out tasks that got better", "None.")}</details>`;
    }}<//>`;
  };

  /** Success on each task of the pool until a step and since then, those that fell most first. */
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
    const found = coevo.useRows(`runs/${run}/arms/${arm}/groups`);
    if (!found) return html`<p class="soft" role="status">Counting…</p>`;
    const all = aroundStep(found.rows, step);
    const fell = all.filter(({ change }) => change < 0);
    return html`
      <p class="note">${plural(fell.length, "task")} of the ${count(all.length)} that ${arm} practised both before and after it ${fell.length === 1 ? "is" : "are"} solved less often since. Groups are small: look at the numbers of episodes.</p>
      <${Table} label="Training tasks that are solved less often since" rows=${fell.slice(0, MOST_TASKS)} keys=${false} keyOf=${({ task }) => task.id} href=${({ task }) => link(["runs", run, "tasks", task.id])} columns=${[
        { label: "Training task", wide: true, cell: ({ task }) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
        { label: "Before", cell: ({ until }) => html`<${Rate} n=${until[0]} of=${until[1]} />` },
        { label: "Since", cell: ({ since }) => html`<${Rate} n=${since[0]} of=${since[1]} />` },
        { label: "Points", num: true, cell: ({ change }) => coevo.signed(100 * change, 0) },
      ]} />
      ${fell.length > MOST_TASKS && html`<p class="soft">The ${MOST_TASKS} that fell most, of ${count(fell.length)}.</p>`}`;
  };

  const BeforeAfter = ({ run, arm, round }) => {
    const detail = coevo.useData(["runs", run], {}, { run }).data;
    const point = evaluationAfter(detail, arm, round.step);
    const kept = (detail?.evaluations || []).filter((one) => one.kept);
    const first = point && kept.find((one) => one.arm === arm) === point;
    const start = first ? kept.find((one) => one.arm === START) : undefined;
    return html`<${Section} title="What changed after it" id="changed">
      ${!coevo.lacks("evaluations") && html`<h3 class="sub">On held-out tasks</h3>`}
      ${coevo.lacks("evaluations") ? "" : point ? html`<${Changed} run=${run} arm=${arm} point=${point} start=${start} />` : detail && html`<p class="soft">No evaluation came after this round, or the run kept none of its tasks' ends.</p>`}
      ${!round.first && html`<h3 class="sub">On the tasks of the pool</h3><${Practised} run=${run} arm=${arm} step=${round.step} />`}
    <//>`;
  };

  const Contexts = ({ detail, run, kinds }) => {
    const { contexts, round } = detail;
    if (!contexts.length) {
      return html`<p class="soft">${round.first ? `It looked for ${plural(round.contexts, "task")} anywhere in the training scenarios, without guidance.` : "It explored without guidance."}</p>`;
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
            ["Pool after it", count(round.pool_size)],
            ["Env steps", count(round.steps_spent), `${count(round.gate_steps)} by gates`],
            ["Took", coevo.duration(round.seconds)],
            round.calls > 0 && ["Models asked", plural(round.calls, "request"), `${count(round.tokens)} tokens`],
          ]} />
          <${BeforeAfter} run=${run} arm=${arm} round=${round} />
          <${Section} title="Drafts" aside=${html`<a href=${link(["runs", run, "drafts"], { arm, round: id })}>With filters and gates</a>`}>
            <${Table} label="Drafts of the round" rows=${detail.drafts} columns=${coevo.draftColumns(kinds, { round: false })} keyOf=${(draft) => draft.position} href=${coevo.draftHref(run)} empty=${html`<${Empty} title="The round tried no draft." />`} />
          <//>
          <${Section} title="From where it explored"><${Contexts} detail=${detail} run=${run} kinds=${kinds} /><//>
          ${Object.keys(round.usage).length > 0 && html`<${Section} title="What models were asked"><${Facts} value=${round.usage} most=${60} /><//>`}`;
      }}<//>
    <//>`;
  };

  coevo.route("runs/:run/arms/:arm/rounds/:round", coevo.views.Round);
})();
