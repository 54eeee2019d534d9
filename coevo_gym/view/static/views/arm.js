// An arm: its rounds and steps over time, its groups, and single groups with their rollouts.
"use strict";

(() => {
  const { html, link, useMemo, Words, Page, Loaded, Section, Table, Rate, Kind, Select, TextFilter, Pager, Figures, Empty, count } = coevo;
  const PER_PAGE = 50;

  const crumbsOf = (run, arm) => [["Runs", "#/"], [run, link(["runs", run])], ...(arm ? [[arm, link(["runs", run, "arms", arm])]] : [])];

  const some = (rows, name) => rows.some((row) => row[name]);

  const ROUND_COLUMNS = (run, arm, kinds, rows) => [
    { label: "Round", cell: (round) => html`<b>${round.id}</b>${round.first && html` <small class="soft">first task set</small>`}` },
    { label: "After step", num: true, cell: (round) => count(round.step) },
    { label: "Explored from", wide: true, cell: (round) => html`<span class="arm-list">${Object.entries(round.kinds).map(([kind, n]) => html`<span><${Kind} kind=${kind} kinds=${kinds} /> <span class="soft num">${n}</span></span>`)}</span>` },
    { label: "Drafts", num: true, cell: (round) => html`<a href=${link(["runs", run, "drafts"], { arm, round: round.id })}>${count(round.drafts)}</a>` },
    { label: "Accepted", num: true, cell: (round) => html`${count(round.accepted)}${round.held > 0 && html` <small class="soft">+${round.held} held</small>`}` },
    { label: "Top gate", cell: (round) => Object.entries(round.rejected).slice(0, 1).map(([gate, n]) => html`${gate} <span class="soft num">${n}</span>`) },
    { label: "Pool after", num: true, cell: (round) => count(round.pool_size) },
    { label: "Env steps", num: true, cell: (round) => count(round.steps_spent) },
    some(rows, "tokens") && { label: "Model use", num: true, cell: (round) => html`<${coevo.Spent} of=${round} />` },
  ].filter(Boolean);

  const Rounds = ({ run, arm, kinds }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "rounds"], {}, { run });
    return html`<${Loaded} of=${found} lines=${3}>${({ rows }) => html`<${Table} label="Evolution rounds" rows=${rows} keys=${false} columns=${ROUND_COLUMNS(run, arm, kinds, rows)}
      keyOf=${(round) => round.id} href=${(round) => link(["runs", run, "arms", arm, "rounds", round.id])}
      empty=${html`<${Empty} title="This arm has no evolution rounds."><p>Its task set is fixed.</p><//>`} />`}<//>`;
  };

  /** Training success, signals and any other logged metric over the arm's steps. */
  const StepCharts = ({ table, metric, kinds }) => {
    const names = useMemo(() => Object.keys(table.series).sort(), [table]);
    const [success, signals, chosen] = useMemo(() => {
      const of = (values) => table.step.map((x, i) => ({ x, y: values[i] }));
      const share = table.step.map((_, i) => (table.episodes[i] ? table.successes[i] / table.episodes[i] : null));
      const fired = Object.entries(table.signals).map(([kind, values], i) => ({ label: kinds[kind]?.label || kind, style: i, points: of(values) }));
      return [[{ label: "solved episodes", points: of(share), bold: true }], fired, metric && table.series[metric] ? [{ label: metric, points: of(table.series[metric]), bold: true }] : null];
    }, [table, metric, kinds]);
    const rounds = useMemo(() => [{ label: "evolution rounds", style: 1, at: table.rounds.map((round) => round.step) }], [table]);
    const x = { label: "learner step" };
    return html`
      <div class="chart-pair">
        <${coevo.Chart} kind="lines" title="Success in training" series=${success} rounds=${rounds} x=${x} y=${{ label: "success", format: "percent" }} />
        <${coevo.Chart} kind="lines" title="Signals per step" series=${signals} x=${x} y=${{ label: "signals", format: "count" }} none="No signals yet." />
      </div>
      <div class="filters"><${Select} label="Other metrics" name="metric" value=${metric} options=${names.map((name) => [name, name])} /></div>
      ${chosen && html`<${coevo.Chart} kind="lines" title=${metric} series=${chosen} x=${x} y=${{ label: metric }} />`}`;
  };

  /** The arm's steps with all their numbers, for a download. */
  const stepRows = ({ step, series, signals, rounds, ...columns }) => {
    const lists = { step, ...columns, ...series, ...Object.fromEntries(Object.entries(signals).map(([kind, values]) => [`signals.${kind}`, values])) };
    return step.map((_, i) => Object.fromEntries(Object.entries(lists).filter(([, values]) => Array.isArray(values)).map(([name, values]) => [name, values[i]])));
  };

  /** The arm's steps in pages, latest first. */
  const Steps = ({ run, arm, table, page }) => {
    const rows = useMemo(() => table.step.map((step, i) => ({ step, i })).reverse(), [table]);
    const pages = Math.max(1, Math.ceil(rows.length / PER_PAGE));
    const now = Math.min(pages, page);
    const roundAt = new Map(table.rounds.map((round) => [round.step, round]));
    const columns = [
      { label: "Learner step", cell: ({ step }) => html`<b>${count(step)}</b>` },
      { label: "Total env steps", num: true, cell: ({ i }) => count(table.env_steps[i]) },
      { label: "Groups", num: true, cell: ({ step, i }) => html`<a href=${link(["runs", run, "arms", arm, "groups"], { step })}>${count(table.groups[i])}</a>` },
      { label: "Success", cell: ({ i }) => html`<${Rate} n=${table.successes[i]} of=${table.episodes[i]} />` },
      { label: "Signals", num: true, cell: ({ i }) => count(Object.values(table.signals).reduce((sum, values) => sum + values[i], 0)) },
      { label: "Stored episodes", num: true, cell: ({ i }) => count(table.stored[i]) },
      { label: "Next round", cell: ({ step }) => roundAt.has(step) && html`<a href=${link(["runs", run, "arms", arm, "rounds", roundAt.get(step).id])}>${roundAt.get(step).id}</a>` },
    ];
    return html`
      <${Table} label="Learner steps" rows=${rows.slice((now - 1) * PER_PAGE, now * PER_PAGE)} columns=${columns} keyOf=${(row) => row.step}
        href=${({ step }) => link(["runs", run, "trajectories"], { arm, step })} source=${() => stepRows(table)} />
      <${Pager} of=${{ total: rows.length, page: now, pages, per_page: PER_PAGE }} noun="step" />`;
  };

  const SECTIONS = [["rounds", "Rounds"], ["over-time", "Over time"], ["tasks", "Success by task"], ["steps", "Steps"]];

  coevo.views.Arm = ({ run, arm, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "arms", arm, "steps"], {}, { run });
    const actions = html`<a class="button" href=${link(["runs", run, "arms", arm, "groups"])}>Groups</a>
      <a class="button" href=${link(["runs", run, "trajectories"], { arm })}>Episodes</a>
      <a class="button" href=${link(["runs", run, "tasks"], { arm })}>Tasks</a>`;
    return html`<${Page} title=${`Arm ${arm}`} crumbs=${crumbsOf(run)} run=${run} actions=${actions} wide>
      <${coevo.Contents} of=${SECTIONS} />
      <${Section} title="Evolution rounds" id="rounds"><${Rounds} run=${run} arm=${arm} kinds=${kinds} /><//>
      <${Loaded} of=${found}>${(table) => table.step.length === 0
        ? html`<${Empty} title="This arm has not finished a step yet."><p>Steps appear here as they finish.</p><//>`
        : html`
          <${Section} title="Over time" id="over-time"><${StepCharts} table=${table} metric=${params.metric} kinds=${kinds} /><//>
          <${coevo.ArmNotes} run=${run} arm=${arm} />
          <${Section} title="Success by task" id="tasks"><${coevo.RoundsMap} run=${run} table=${table} /><//>
          <${Section} title="Steps" id="steps"><${Steps} run=${run} arm=${arm} table=${table} page=${Number(params.page) || 1} /><//>`}<//>
    <//>`;
  };

  const OUTCOMES = [["all", "all solved"], ["some", "some solved"], ["none", "none solved"]];

  const groupColumns = (run, kinds) => [
    { label: "Group", cell: (group) => html`<b>${group.id}</b>` },
    { label: "Learner step", num: true, cell: (group) => count(group.step) },
    { label: "Task", wide: true, cell: (group) => html`<${Words} text=${group.task.instruction || group.task.name} most=${160} />` },
    { label: "Solved", cell: (group) => html`<${Rate} n=${group.successes} of=${group.episodes} />` },
    { label: "Signals", cell: (group) => html`<span class="arm-list">${group.signals.map((kind) => html`<${Kind} kind=${kind} kinds=${kinds} />`)}</span>` },
    { label: "Episodes", cell: (group) => (group.stored ? "stored" : html`<span class="soft">not stored</span>`) },
  ];

  coevo.views.Groups = ({ run, arm, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "arms", arm, "groups"], params, { run });
    return html`<${Page} title=${`Groups of ${arm}`} crumbs=${crumbsOf(run, arm)} run=${run} wide>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${TextFilter} value=${params.q} label="Words in the task" />
        <${Select} label="Outcome" name="outcome" value=${params.outcome} options=${OUTCOMES} />
        <${Select} label="Signal" name="signal" value=${params.signal} options=${coevo.firing(kinds)} />
        <${Select} label="Episodes" name="stored" value=${params.stored} options=${[["true", "stored"]]} />
        <${coevo.StepFilter} params=${params} />
      </form>
      <${Loaded} of=${found}>${(page) => html`
        <${Table} label="Groups" rows=${page.rows} columns=${groupColumns(run, kinds)} keyOf=${(group) => group.id}
          href=${(group) => link(["runs", run, "arms", arm, "groups", group.id])} source=${coevo.allRows(["runs", run, "arms", arm, "groups"], params)} empty=${html`<${coevo.NoMatch} noun="group" />`} />
        <${Pager} of=${page} noun="group" />`}<//>
    <//>`;
  };

  coevo.views.Group = ({ run, arm, group }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "arms", arm, "groups", group], {}, { run });
    const other = (id, words) => id && html`<a class="button" href=${link(["runs", run, "arms", arm, "groups", id])}>${words}</a>`;
    const actions = found.data && html`${other(found.data.before, "← Previous group of this task")}${other(found.data.after, "Next group of this task →")}
      <a class="button" href=${link(["runs", run, "tasks", found.data.group.task.id])}>Task</a>`;
    return html`<${Page} title=${`${group} of ${arm}`} crumbs=${[...crumbsOf(run, arm), ["groups", link(["runs", run, "arms", arm, "groups"])]]} run=${run} tab="trajectories" actions=${actions} wide>
      <${Loaded} of=${found}>${({ group: one, trajectories }) => html`
        <blockquote class="asked"><${Words} text=${one.task.instruction} most=${600} /></blockquote>
        <${Figures} of=${[["Solved", `${one.successes} of ${one.episodes}`], ["Mean score", coevo.decimal(one.score)], ["Step", count(one.step)], one.episodes < one.size && ["Finished", `${one.episodes} of ${one.size}`]]} />
        ${trajectories.length === 0
          ? html`<${Empty} title="The episodes of this group are not stored."><p>By default, a run stores the episodes of groups with a signal. To store all episodes, train with <code>--set store.record=all</code>.</p><//>`
          : html`<${Table} label="Episodes of the group" rows=${trajectories} columns=${coevo.trajectoryColumns(kinds, { place: false })} keyOf=${(row) => row.id} href=${(row) => link(["runs", run, "trajectories", row.id])} />`}`}<//>
    <//>`;
  };

  coevo.route("runs/:run/arms/:arm", coevo.views.Arm);
  coevo.route("runs/:run/arms/:arm/groups", coevo.views.Groups);
  coevo.route("runs/:run/arms/:arm/groups/:group", coevo.views.Group);
  coevo.armCrumbs = crumbsOf;
})();
