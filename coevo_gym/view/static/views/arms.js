// Two arms side by side: on held-out tasks, on training tasks, on one task, and two episodes.
"use strict";

(() => {
  const { html, cls, link, useMemo, Words, Page, Loaded, Section, Figures, Table, Rate, Outcome, TextFilter, Pager, Empty, count, plural } = coevo;

  const trainedOf = (detail) => (detail?.arms || []).filter((arm) => arm.trained).map((arm) => arm.name);

  /** The two arms in the address; by default, the first and the last of the run. */
  const pairOf = (names, params) => [
    names.includes(params.a) ? params.a : names[0],
    names.includes(params.b) ? params.b : names[names.length - 1],
  ];

  /** Success on a task by group, one line per arm. */
  const practiceSeries = (run, names, arms, practice) => {
    const style = coevo.charts.styles(names, names[names.length - 1]);
    return arms.map((arm) => ({
      label: arm,
      style: style[arm],
      points: practice
        .filter((point) => point.arm === arm)
        .map((point) => ({
          x: point.step, y: point.episodes ? point.successes / point.episodes : null,
          href: link(["runs", run, "arms", arm, "groups", point.id]),
        })),
    })); // prettier-ignore
  };

  const PairFilter = ({ names, pair }) => html`${["a", "b"].map((side, i) => html`<label class="field" key=${side}><span>${i ? "Second arm" : "First arm"}</span>
    <select onChange=${(event) => coevo.setParams({ [side]: event.target.value })}>${names.map((name) => html`<option value=${name} selected=${name === pair[i]}>${coevo.cut(name, 60)}</option>`)}</select></label>`)}`;

  const share = ({ episodes, successes }) => (episodes ? successes / episodes : null);

  const NeedsTwo = () => html`<${Empty} title="This run has only one arm.">
    <p>To train two arms: <code>coevo train quickstart --set 'arms=["static", "coevolve"]'</code></p><//>`;

  /** Success of both arms on held-out tasks, and the link to their comparison. */
  const HeldOut = ({ run, detail, pair }) => {
    const rows = [...new Set(pair)].map((name) => detail.arms.find((arm) => arm.name === name));
    return html`<${Section} title="Held-out tasks" aside=${html`<a href=${link(["compare"], { a: `runs/${run}/${pair[0]}`, b: `runs/${run}/${pair[1]}` })}>Compare task by task</a>`}>
      <${Figures} of=${rows.map((arm) => [arm.name, html`<${coevo.Success} of=${arm} />`, arm.n_tasks > 0 && `of ${plural(arm.n_tasks, "task")}`])} />
    <//>`;
  };

  const SIZE = 50;
  const ORDERS = {
    a: ({ a }) => share(a),
    b: ({ b }) => share(b),
    difference: ({ difference }) => difference,
    episodes: ({ a, b }) => a.episodes + b.episodes,
  };

  /** Training tasks of two arms with both results; by default, the largest difference first. */
  const sortedTasks = (tasks, pair, { q = "", sort = "" }) => {
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = tasks
      .map((task) => {
        const [a, b] = pair.map((arm) => coevo.practiceOf(task, arm));
        const both = share(a) !== null && share(b) !== null;
        return { task, a, b, difference: both ? share(b) - share(a) : null };
      })
      .filter(({ a, b }) => a.episodes + b.episodes > 0)
      .filter(({ task }) => words.every((word) => `${task.name} ${task.id} ${task.instruction}`.toLowerCase().includes(word)));
    const by = ORDERS[sort.replace(/^-/, "")];
    const key = by || (({ difference }) => (difference === null ? null : -Math.abs(difference)));
    const sign = by && sort.startsWith("-") ? -1 : 1;
    const known = rows.filter((row) => key(row) !== null);
    return [...d3.sort(known, (row) => sign * key(row)), ...rows.filter((row) => key(row) === null)]; // prettier-ignore
  };

  /** One page of the training tasks, with the results of each arm. */
  const PairTable = ({ run, tasks, pair, params }) => {
    const rows = sortedTasks(tasks, pair, params);
    const pages = Math.max(1, Math.ceil(rows.length / SIZE));
    const page = Math.min(pages, Math.max(1, Number(params.page) || 1));
    const columns = [
      { label: "Task", wide: true, cell: ({ task }) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
      { label: "Origin", cell: ({ task }) => html`<${coevo.Origin} task=${task} />` },
      ...pair.map((arm, i) => ({ label: arm, sort: "ab"[i], cell: (row) => html`<${Rate} n=${row["ab"[i]].successes} of=${row["ab"[i]].episodes} />` })),
      { label: "Difference (points)", num: true, sort: "difference", cell: ({ difference }) => (difference === null ? coevo.NONE : coevo.signed(100 * difference, 0)) },
      { label: "Episodes", num: true, sort: "episodes", cell: ({ a, b }) => count(a.episodes + b.episodes) },
    ];
    return html`
      <${Table} label="Training tasks in two arms" rows=${rows.slice((page - 1) * SIZE, page * SIZE)} columns=${columns} keyOf=${({ task }) => task.id}
        href=${({ task }) => link(["runs", run, "tasks", task.id, "arms"], { a: pair[0], b: pair[1] })} source=${() => rows} empty=${html`<${coevo.NoMatch} noun="task" />`} />
      <${Pager} of=${{ total: rows.length, page, pages, per_page: SIZE }} noun="task" />`;
  };

  /** The training tasks of two arms. */
  const TrainingTasks = ({ run, pair, params }) => {
    const found = coevo.useRows(["runs", run, "tasks"], { run });
    return html`<${Loaded} of=${found}>${({ rows }) => html`<${PairTable} run=${run} tasks=${rows} pair=${pair} params=${params} />`}<//>`;
  };

  coevo.views.Arms = ({ run, params }) => {
    const detail = coevo.useData(["runs", run], {}, { run });
    const names = trainedOf(detail.data);
    const pair = pairOf(names, params);
    return html`<${Page} title="Two arms" crumbs=${[["Runs", "#/"], [run, link(["runs", run])]]} run=${run} tab="arms" wide>
      <${Loaded} of=${detail}>${(whole) => names.length < 2 ? html`<${NeedsTwo} />` : html`
        <form class="filters" onSubmit=${(event) => event.preventDefault()}><${PairFilter} names=${names} pair=${pair} /><${TextFilter} value=${params.q} label="Words in the task" /></form>
        <${HeldOut} run=${run} detail=${whole} pair=${pair} />
        <${Section} title="Training tasks" note="Success over all training episodes so far. Arms train on a task at different times and with different frequencies, so these differences do not show which arm is better.">
          <${TrainingTasks} run=${run} pair=${pair} params=${params} />
        <//>`}<//>
    <//>`;
  };

  /** The episodes of one arm on a task. */
  const Column = ({ run, arm, task, kinds, detail }) => {
    const found = coevo.useData(["runs", run, "trajectories"], { task, arm, per_page: 100 }, { run });
    const practice = coevo.practiceOf({ practice: detail.arms }, arm);
    return html`<section class="side-column" aria-label=${`Arm ${arm}`}>
      <div class="section-head"><h2><a href=${link(["runs", run, "arms", arm])}><${Words} text=${arm} most=${48} /></a></h2><${Rate} n=${practice.successes} of=${practice.episodes} /></div>
      <${Loaded} of=${found} lines=${3}>${(page) => page.rows.length === 0
        ? html`<p class="soft">${practice.episodes ? "No episode of this task is stored. By default, a run stores the episodes of groups with a signal." : "This arm has not trained on this task."}</p>`
        : html`<${Table} label=${`Episodes of ${arm}`} rows=${page.rows} keys=${false} columns=${[{ label: "Episode", cell: (row) => html`step ${count(row.step)}, episode ${row.position + 1}` }, ...coevo.trajectoryColumns(kinds, { place: false }).slice(1, 5)]} keyOf=${(row) => row.id} href=${(row) => link(["runs", run, "trajectories", row.id])} source=${coevo.allRows(["runs", run, "trajectories"], { task, arm })} />
            ${page.total > page.rows.length && html`<a href=${link(["runs", run, "trajectories"], { task, arm })}>All ${plural(page.total, "episode")}</a>`}`}<//>
    </section>`;
  };

  /** The link to the last stored episode of each arm, side by side; with different outcomes if possible. */
  const SideLink = ({ run, task, pair }) => {
    const lists = pair.map((arm) => coevo.useData(["runs", run, "trajectories"], { task, arm, per_page: 100 }).data?.rows || []);
    if (!lists[0].length || !lists[1].length) return null;
    const last = lists.map((rows) => rows[rows.length - 1]);
    const other = lists[0].findLast((row) => row.success !== last[1].success);
    const path = (row) => `runs/${run}/trajectories/${row.id}`;
    return html`<a class="button" href=${link(["side"], { a: path(other || last[0]), b: path(last[1]) })}>Compare two episodes</a>`;
  };

  coevo.views.TaskArms = ({ run, task, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "tasks", task], {}, { run });
    const names = trainedOf(coevo.useData(["runs", run]).data);
    const pair = pairOf(names, params);
    const series = useMemo(() => practiceSeries(run, names, [...new Set(pair)], found.data?.practice || []), [found.data, ...pair]);
    return html`<${Page} title="Task in two arms" crumbs=${[["Runs", "#/"], [run, link(["runs", run])], ["Two arms", link(["runs", run, "arms"], { a: pair[0], b: pair[1] })]]} run=${run} tab="arms" wide
      actions=${html`<a class="button" href=${link(["runs", run, "tasks", task])}>Task</a>${names.length > 1 && html`<${SideLink} run=${run} task=${task} pair=${pair} />`}`}>
      <${Loaded} of=${found}>${(detail) => names.length < 2 ? html`<${NeedsTwo} />` : html`
        <blockquote class="asked"><${Words} text=${detail.instruction} most=${600} /></blockquote>
        <form class="filters" onSubmit=${(event) => event.preventDefault()}><${PairFilter} names=${names} pair=${pair} /></form>
        <${coevo.Chart} kind="lines" title="Share of solved episodes by group" series=${series} x=${{ label: "learner step" }} y=${{ label: "solved", format: "percent", domain: [0, 1] }} none="Neither arm has trained on this task yet." />
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
    step ? html`<div class=${cls("side-step", { erred: step.error_kind })}><${coevo.Shown} step=${step} look="page" /><${coevo.Did} step=${step} /></div>` : html`<div class="side-step over soft">The episode had ended.</div>`;

  coevo.views.Side = ({ params }) => {
    const found = [params.a, params.b].map((path) => coevo.useData(path ? path.split("/") : null));
    const [a, b] = found.map((one) => one.data);
    const bad = found.find((one) => one.error);
    const run = a && a.of === "training" ? a.run : undefined;
    const same = a && b && a.task.id === b.task.id;
    const length = a && b ? Math.max(a.steps.length, b.steps.length) : 0;
    const parted = a && b ? Array.from({ length }).findIndex((_, i) => a.steps[i]?.action !== b.steps[i]?.action) : -1;
    const whole = bad || (a && b ? { data: true, again: () => {} } : { data: undefined });
    return html`<${Page} title="Two episodes" run=${run} tab="arms" wide crumbs=${run ? [["Runs", "#/"], [run, link(["runs", run])]] : [["Runs", "#/"]]}>
      ${!params.a || !params.b ? html`<${Empty} title="Choose two episodes."><p>Open an episode and select “Compare with another episode”.</p><//>` : html`<${Loaded} of=${whole}>${() => html`
        ${same ? html`<blockquote class="asked"><${Words} text=${a.instruction} most=${600} /></blockquote>` : html`<p class="notice">These episodes belong to different tasks.</p>`}
        ${parted >= 0 && html`<p>First difference: <b>step ${parted + 1}</b></p>`}
        <div class="side sticky">${[[a, params.a], [b, params.b]].map(([episode, path]) => html`<${SideHead} key=${path} episode=${episode} path=${path} />`)}</div>
        ${Array.from({ length }, (_, i) => html`<div class=${cls("side-row", { parted: i === parted })} key=${i}><h3 class="side-number">Step ${i + 1}</h3><div class="side"><${SideStep} step=${a.steps[i]} /><${SideStep} step=${b.steps[i]} /></div></div>`)}`}<//>`}
    <//>`;
  };

  Object.assign(coevo, { trainedOf, practiceSeries });
  coevo.route("runs/:run/arms", coevo.views.Arms);
  coevo.route("runs/:run/tasks/:task/arms", coevo.views.TaskArms);
  coevo.route("side", coevo.views.Side);
})();
