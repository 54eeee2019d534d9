// Two arms beside each other: on all tasks that both practised, on one task, and two episodes.
"use strict";

(() => {
  const { html, cls, link, useMemo, Words, Page, Loaded, Table, Rate, Outcome, TextFilter, Pager, Empty, count, plural } = coevo;

  const trainedOf = (detail) => (detail?.arms || []).filter((arm) => arm.trained).map((arm) => arm.name);

  /** The two arms that a place names, or the first and the last of the run. */
  const pairOf = (names, params) => [
    names.includes(params.a) ? params.a : names[0],
    names.includes(params.b) ? params.b : names[names.length - 1],
  ];

  /** Success on a task in each group in which these arms practised it, in the arms' own styles. */
  const practiceSeries = (run, names, arms, practice) => {
    const style = coevo.charts.styles(names, names[names.length - 1]);
    return arms.map((arm) => ({
      label: arm,
      style: style[arm],
      points: practice
        .filter((point) => point.arm === arm)
        .map((point) => ({
          x: point.step, y: point.episodes ? point.successes / point.episodes : null,
          href: link(["runs", run, "arms", arm, "groups", point.group]),
        })),
    })); // prettier-ignore
  };

  const PairFilter = ({ names, pair }) => html`${["a", "b"].map((side, i) => html`<label class="field" key=${side}><span>${i ? "beside" : "Arm"}</span>
    <select onChange=${(event) => coevo.setParams({ [side]: event.target.value })}>${names.map((name) => html`<option value=${name} selected=${name === pair[i]}>${coevo.cut(name, 60)}</option>`)}</select></label>`)}`;

  const share = ({ episodes, successes }) => (episodes ? successes / episodes : null);

  /** How much more of B's episodes solved a task than of A's, in points. */
  const Difference = ({ a, b }) => {
    if (share(a) === null || share(b) === null) return html`<span class="soft">${coevo.NONE}</span>`;
    const points = 100 * (share(b) - share(a));
    const tone = points > 0 ? "good" : points < 0 ? "bad" : "";
    return html`<span class=${cls("num", tone && `outcome ${tone}`)}>${points > 0 ? "+" : points < 0 ? "−" : "±"}${Math.abs(points).toFixed(0)}</span>`;
  };

  const NeedsTwo = () => html`<${Empty} title="This run has one arm, so there is nothing to put beside it.">
    <p>A run with two: <code>coevo train quickstart --set 'arms=["static", "coevolve"]'</code></p><//>`;

  coevo.views.Arms = ({ run, params }) => {
    const detail = coevo.useData(["runs", run], {}, { run });
    const names = trainedOf(detail.data);
    const pair = pairOf(names, params);
    const found = coevo.useData(["runs", run, "tasks"], { q: params.q, page: params.page, sort: params.sort || "-episodes", practised: "true" }, { run });
    const columns = [
      { label: "Task", wide: true, cell: (task) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
      { label: "Origin", cell: (task) => html`<${coevo.Origin} task=${task} />` },
      ...pair.map((arm) => ({ label: arm, cell: (task) => html`<${Rate} n=${coevo.practiceOf(task, arm).successes} of=${coevo.practiceOf(task, arm).episodes} />` })),
      { label: "Points more", num: true, cell: (task) => html`<${Difference} a=${coevo.practiceOf(task, pair[0])} b=${coevo.practiceOf(task, pair[1])} />` },
      { label: "Episodes", num: true, sort: "episodes", cell: (task) => count(task.episodes) },
    ];
    return html`<${Page} title="Two arms side by side" crumbs=${[["Runs", "#/"], [run, link(["runs", run])]]} run=${run} tab="arms" wide
      actions=${names.length > 1 && html`<a class="button" href=${link(["compare"], { a: `runs/${run}/${pair[0]}`, b: `runs/${run}/${pair[1]}` })}>On held-out tasks</a>`}>
      <${Loaded} of=${detail}>${() => names.length < 2 ? html`<${NeedsTwo} />` : html`
        <form class="filters" onSubmit=${(event) => event.preventDefault()}><${PairFilter} names=${names} pair=${pair} /><${TextFilter} value=${params.q} label="Words of the task" /></form>
        <${Loaded} of=${found}>${(page) => html`
          <${Table} label="Tasks in two arms" rows=${page.rows} columns=${columns} keyOf=${(task) => task.id}
            href=${(task) => link(["runs", run, "tasks", task.id, "arms"], { a: pair[0], b: pair[1] })} empty=${html`<${coevo.NoMatch} noun="task" />`} />
          <${Pager} of=${page} noun="task" />`}<//>`}<//>
    <//>`;
  };

  /** What one arm did with a task: how often, and each of its episodes. */
  const Column = ({ run, arm, task, kinds, detail }) => {
    const found = coevo.useData(["runs", run, "trajectories"], { task, arm, per_page: 100 }, { run });
    const practice = coevo.practiceOf({ practice: detail.arms }, arm);
    return html`<section class="side-column" aria-label=${`Arm ${arm}`}>
      <div class="section-head"><h2><a href=${link(["runs", run, "arms", arm])}><${Words} text=${arm} most=${48} /></a></h2><${Rate} n=${practice.successes} of=${practice.episodes} /></div>
      <${Loaded} of=${found} lines=${3}>${(page) => page.rows.length === 0
        ? html`<p class="soft">${practice.episodes ? "None of its episodes on this task is stored: a run keeps those of groups that fired a signal." : "This arm never practised the task."}</p>`
        : html`<${Table} label=${`Episodes of ${arm}`} rows=${page.rows} keys=${false} columns=${[{ label: "Episode", cell: (row) => html`step ${count(row.step)}, ${row.position + 1}` }, ...coevo.trajectoryColumns(kinds, { place: false }).slice(1, 5)]} keyOf=${(row) => row.id} href=${(row) => link(["runs", run, "trajectories", row.id])} />
            ${page.total > page.rows.length && html`<a href=${link(["runs", run, "trajectories"], { task, arm })}>All ${count(page.total)}</a>`}`}<//>
    </section>`;
  };

  /** The last stored episode of each arm, one that solved the task in one arm and failed in the other if there is such a pair. */
  const SideLink = ({ run, task, pair }) => {
    const lists = pair.map((arm) => coevo.useData(["runs", run, "trajectories"], { task, arm, per_page: 100 }).data?.rows || []);
    if (!lists[0].length || !lists[1].length) return null;
    const last = lists.map((rows) => rows[rows.length - 1]);
    const other = lists[0].findLast((row) => row.success !== last[1].success);
    const path = (row) => `runs/${run}/trajectories/${row.id}`;
    return html`<a class="button" href=${link(["side"], { a: path(other || last[0]), b: path(last[1]) })}>Two episodes step by step</a>`;
  };

  coevo.views.TaskArms = ({ run, task, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "tasks", task], {}, { run });
    const names = trainedOf(coevo.useData(["runs", run]).data);
    const pair = pairOf(names, params);
    const series = useMemo(() => practiceSeries(run, names, [...new Set(pair)], found.data?.practice || []), [found.data, ...pair]);
    return html`<${Page} title="One task in two arms" crumbs=${[["Runs", "#/"], [run, link(["runs", run])], ["Two arms", link(["runs", run, "arms"], { a: pair[0], b: pair[1] })]]} run=${run} tab="arms" wide
      actions=${html`<a class="button" href=${link(["runs", run, "tasks", task])}>The task</a>${names.length > 1 && html`<${SideLink} run=${run} task=${task} pair=${pair} />`}`}>
      <${Loaded} of=${found}>${(detail) => names.length < 2 ? html`<${NeedsTwo} />` : html`
        <blockquote class="asked"><${Words} text=${detail.instruction} most=${600} /></blockquote>
        <form class="filters" onSubmit=${(event) => event.preventDefault()}><${PairFilter} names=${names} pair=${pair} /></form>
        <${coevo.Chart} kind="lines" title="Share of its episodes that solved it, group by group" series=${series} x=${{ label: "step of the learner" }} y=${{ label: "solved", format: "percent", domain: [0, 1] }} none="Neither arm has practised it yet." />
        <div class="side">${pair.map((arm) => html`<${Column} key=${arm} run=${run} arm=${arm} task=${detail.task.id} kinds=${kinds} detail=${detail} />`)}</div>`}<//>
    <//>`;
  };

  // Two episodes.

  const SideHead = ({ episode, path }) => html`<div class="side-head">
    <h2><a href=${coevo.hrefOf(path)}><${Words} text=${episode.arm} most=${48} /></a> <span class="soft">${episode.step === null ? "" : `step ${episode.step}, `}episode ${episode.position + 1}</span></h2>
    <p><${Outcome} success=${episode.grade.success} score=${episode.grade.score} /> <span class="soft">${episode.grade.end_reason.replaceAll("_", " ")}, ${plural(episode.steps.length, "step")}</span></p>
    ${episode.shown_by && html`<p class="soft">Interface <${Words} text=${episode.shown_by.name} most=${60} /></p>`}
  </div>`;

  const SideStep = ({ step }) =>
    step ? html`<div class=${cls("side-step", { erred: step.error_kind })}><${coevo.Shown} step=${step} look="page" /><${coevo.Did} step=${step} /></div>` : html`<div class="side-step over soft">Over by then.</div>`;

  coevo.views.Side = ({ params }) => {
    const found = [params.a, params.b].map((path) => coevo.useData(path ? path.split("/") : null));
    const [a, b] = found.map((one) => one.data);
    const bad = found.find((one) => one.error);
    const run = a && a.of === "training" ? a.run : undefined;
    const same = a && b && a.task.id === b.task.id;
    const length = a && b ? Math.max(a.steps.length, b.steps.length) : 0;
    const parted = a && b ? Array.from({ length }).findIndex((_, i) => a.steps[i]?.action !== b.steps[i]?.action) : -1;
    const whole = bad || (a && b ? { data: true, again: () => {} } : { data: undefined });
    return html`<${Page} title="Two episodes side by side" run=${run} tab="arms" wide crumbs=${run ? [["Runs", "#/"], [run, link(["runs", run])]] : [["Runs", "#/"]]}>
      ${!params.a || !params.b ? html`<${Empty} title="Two episodes are to be named."><p>Open an episode and choose “Beside another”.</p><//>` : html`<${Loaded} of=${whole}>${() => html`
        ${same ? html`<blockquote class="asked"><${Words} text=${a.instruction} most=${600} /></blockquote>` : html`<p class="notice">These are episodes of two tasks.</p>`}
        ${parted >= 0 && html`<p>They part at <b>step ${parted + 1}</b>.</p>`}
        <div class="side sticky">${[[a, params.a], [b, params.b]].map(([episode, path]) => html`<${SideHead} key=${path} episode=${episode} path=${path} />`)}</div>
        ${Array.from({ length }, (_, i) => html`<div class=${cls("side-row", { parted: i === parted })} key=${i}><h3 class="side-number">Step ${i + 1}</h3><div class="side"><${SideStep} step=${a.steps[i]} /><${SideStep} step=${b.steps[i]} /></div></div>`)}`}<//>`}
    <//>`;
  };

  Object.assign(coevo, { trainedOf, practiceSeries });
  coevo.route("runs/:run/arms", coevo.views.Arms);
  coevo.route("runs/:run/tasks/:task/arms", coevo.views.TaskArms);
  coevo.route("side", coevo.views.Side);
})();
