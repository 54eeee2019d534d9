// Measures of a whole run: training episodes of its arms, cost and yield of evolution, episode
// lengths, model usage, and differences between the task sets of its arms.
"use strict";

(() => {
  const { html, link, useMemo, Words, Section, Loaded, Table, Term, Chart, count, percent, decimal, given, plural, NONE } = coevo;
  const { styles, histogram } = coevo.charts;

  const sum = (numbers) => numbers.reduce((all, n) => all + (n || 0), 0);
  const share = (n, of) => (given(n) && of ? n / of : NaN);
  const whole = (numbers) => sum([numbers.steps_all_fail, numbers.steps_mixed, numbers.steps_all_pass]);

  /** Lines of a table: the term, the value for an arm, and its format. */
  const PRACTICE = [
    ["group", ({ numbers }) => numbers.groups, count, "groups"],
    ["mixed", ({ numbers }) => numbers.mixed_groups, percent, "mixed groups"],
    ["mixed_recent", ({ numbers }) => numbers.mixed_groups_recent, percent],
    ["gradient_tokens", ({ numbers }) => numbers.gradient_tokens, count],
    ["gradient_share", ({ numbers }) => numbers.gradient_share, percent],
    ["steps_mixed", ({ numbers }) => share(numbers.steps_mixed, whole(numbers)), percent],
    ["steps_failed", ({ numbers }) => share(numbers.steps_all_fail, whole(numbers)), percent],
    ["steps_passed", ({ numbers }) => share(numbers.steps_all_pass, whole(numbers)), percent],
    ["reserve", ({ numbers }) => numbers.reserve, count],
    ["tags", ({ numbers }) => numbers.tags_covered, count],
    ["signal", ({ signals }) => signals, count, "signals"],
  ];
  const EVOLUTION = [
    ["round", ({ rounds }) => rounds, count, "rounds"],
    ["context", ({ numbers }) => numbers.contexts, count, "contexts"],
    ["draft", ({ numbers }) => numbers.candidates, count, "drafts"],
    ["accepted", ({ numbers }) => numbers.accepted, count],
    ["pass_rate", ({ numbers }) => numbers.pass_rate, percent],
    ["drafts_per_context", ({ numbers }) => numbers.yield, decimal],
    ["tasks_per_signal", ({ numbers }) => numbers.conversion, decimal],
    ["round_time", (arm) => arm.round_time, percent],
    ["explore_steps", ({ numbers }) => numbers.share_explore_steps, percent],
    ["gate_steps", ({ numbers }) => numbers.share_gate_steps, percent],
  ];

  const ArmsTable = ({ label, arms, lines }) => html`<div class="measures" style=${{ "--arms": arms.length }}><${Table} label=${label} rows=${lines} keys=${false} keyOf=${([name]) => name}
    source=${() => lines.map(([name, value]) => ({ measure: name, ...Object.fromEntries(arms.map((arm) => [arm.arm, value(arm) ?? null])) }))} columns=${[
    { label: "Measure", cell: ([name, , , words]) => html`<${Term} name=${name}>${words}<//>` },
    ...arms.map((arm) => ({ label: arm.arm, num: true, cell: ([, value, write]) => write(value(arm)) })),
  ]} /></div>`;

  const USAGE = [
    { label: "Purpose", cell: ({ arm, purpose }) => html`<${Words} text=${`${arm}: ${purpose}`} most=${80} />` },
    { label: "Requests", num: true, cell: ({ usage }) => count(usage.calls + usage.cached) },
    { label: "Tokens read", num: true, cell: ({ usage }) => count(usage.prompt_tokens) },
    { label: "Tokens written", num: true, cell: ({ usage }) => count(usage.completion_tokens) },
    { label: "USD", num: true, cell: ({ usage }) => (usage.usd ? decimal(usage.usd) : NONE) },
    ...[["used", "Answers used"], ["repaired", "Repaired"], ["by_rule", "Replaced by a rule"]].map(([name, label]) => ({
      label, num: true, cell: ({ usage }) => (given(usage.used) && usage.used + usage.repaired + usage.by_rule ? count(usage[name]) : NONE),
    })),
  ]; // prettier-ignore

  /** The rows of model usage, with their sum in the last row. */
  const withTotal = (rows) => {
    const usage = {};
    for (const row of rows) for (const [name, n] of Object.entries(row.usage)) usage[name] = (usage[name] || 0) + n;
    return rows.length > 1 ? [...rows, { arm: "all", purpose: "all purposes", usage: { ...usage, used: null } }] : rows;
  };

  const Lengths = ({ of }) => html`<div class="chart-grid">${of.map(
    ({ policy, solved, failed }) => html`<${Chart} key=${policy} kind="columns" stacked title=${policy} height=${180}
      columns=${histogram([solved, failed])} fills=${[{ label: "solved", style: 2, hatch: 0 }, { label: "failed", style: 1, hatch: 1 }]}
      x=${{ label: "env steps per episode" }} y=${{ label: "episodes", format: "count" }} />`,
  )}</div>`;

  const Cross = ({ of }) => of.map((row) => html`<p key=${row.baseline}>Task by task, at the latest evaluations: <b>${count(row.both)}</b> solved by both
    <b> <${Words} text=${row.ours} most=${60} /></b> and <b><${Words} text=${row.baseline} most=${60} /></b>, <b>${count(row.only_ours)}</b> only by the first, <b>${count(row.only_baseline)}</b> only by the second, <b>${count(row.neither)}</b> by neither.</p>`);

  const Final = ({ of }) => {
    const policies = [...new Set(Object.values(of).flatMap(Object.keys))];
    if (!policies.length) return null;
    return html`<${Table} label="Success on final tasks" rows=${policies} keys=${false} keyOf=${(name) => name}
      source=${() => policies.map((name) => ({ tasks: name, ...Object.fromEntries(Object.entries(of).map(([column, rates]) => [column, rates[name] ?? null])) }))} columns=${[
      { label: "Final tasks", cell: (name) => html`<${Words} text=${name} most=${60} />` },
      ...Object.entries(of).map(([column, rates]) => ({ label: column, num: true, cell: (name) => percent(rates[name]) })),
    ]} />
    <p class="note">Scored once, after the last step of training, on tasks that are not used for anything else. Whole scenarios: share of the scenarios in which all tasks are solved.</p>`;
  };

  /** Results on held-out tasks other than success rates. */
  const HeldOut = ({ run }) => {
    const found = coevo.useData(["runs", run.id, "measures"], {}, { run: run.id }).data;
    return found ? html`<${Cross} of=${found.cross} /><${Final} of=${found.final} />` : null;
  };

  const Loss = ({ losses }) => {
    const series = useMemo(() => [{ label: "loss", points: losses.map((y, i) => ({ x: i + 1, y })), bold: true }], [losses]);
    return html`<${Section} title="Warm-up" id="warm-up"><${Chart} kind="lines" title="Imitation loss on reference solutions" series=${series}
      x=${{ label: "imitation step" }} y=${{ label: "loss" }} height=${200} /><//>`;
  };

  /** Sections of a run's page; see IDS. */
  const RunMeasures = ({ run }) => {
    const found = coevo.useData(["runs", run.id, "measures"], {}, { run: run.id });
    return html`<${Loaded} of=${found} lines=${3}>${({ arms, lengths, usage, warmup_loss: losses }) => {
      const evolved = arms.filter(({ rounds }) => rounds > 0);
      return html`
        <${Section} title="Training" id="practice">
          ${arms.length > 0 ? html`<${ArmsTable} label="Training by arm" arms=${arms} lines=${PRACTICE} />` : html`<p class="note">No step has finished yet.</p>`}<//>
        <${Section} title="Evolution" id="evolution" note="Costs and results of the rounds after the first task set.">
          ${evolved.length > 0 ? html`<${ArmsTable} label="Costs and results of evolution" arms=${evolved} lines=${EVOLUTION} />` : html`<p class="note">This run had no rounds of evolution.</p>`}
          ${usage.length > 0 && html`<h3 class="sub">Model requests in rounds</h3><${Table} label="Model requests by purpose" rows=${withTotal(usage)} keys=${false} columns=${USAGE} keyOf=${({ arm, purpose }) => `${arm} ${purpose}`} />
            <p class="note">Requests answered from a tape (a recording) are included. Answers for steps of walks are never replaced by a rule.</p>`}<//>
        <${Section} title="Episode lengths" id="lengths" note="Episodes of each policy's last evaluation on held-out tasks.">
          ${lengths.length > 0 ? html`<${Lengths} of=${lengths} />` : html`<p class="note">This run does not store how each evaluation episode ended.</p>`}<//>
        ${losses.length > 0 && html`<${Loss} losses=${losses} />`}`;
    }}<//>`;
  };

  /** The sections of a run's page, for its table of contents. */
  const IDS = [["success", "Success"], ["curriculum", "Curriculum"], ["practice", "Training"], ["evolution", "Evolution"], ["lengths", "Episodes"], ["notes", "Notes"], ["settings", "Settings"]];

  /** Signals by kind, with a bar per arm. */
  const signalBars = (run, kinds) => {
    const arms = run.arms.filter((arm) => arm.trained);
    const style = styles(arms.map(({ name }) => name), arms[arms.length - 1]?.name); // prettier-ignore
    const names = Object.keys(run.signals);
    return {
      fills: arms.map(({ name }) => ({ label: name, style: style[name] })),
      rows: names.map((kind) => ({
        label: kinds[kind]?.label || kind,
        values: arms.map(({ signals }) => signals[kind] || 0),
        href: link(["runs", run.id, "trajectories"], { signal: kind }),
      })),
    };
  };

  // ---- task sets ----------------------------------------------------------------------------

  const Diversity = ({ of }) => {
    const style = styles(of.arms.map(({ arm }) => arm), of.arms[of.arms.length - 1].arm); // prettier-ignore
    const series = (name) => of.arms.map((one) => ({ label: one.arm, style: style[one.arm], points: one[name].map((y, x) => ({ x, y })) }));
    const x = { label: "round; 0 is D_0" };
    return html`<div class="chart-pair">
      <div><${Chart} kind="lines" title="Self-similarity of the pool" series=${series("self_similarity")} x=${x} y=${{ label: "SR@5" }} height=${200} /><p class="note"><${Term} name="sr" />: lower values mean more diversity.</p></div>
      <div><${Chart} kind="lines" title="Distance of evolved tasks from D_0" series=${series("distance")} x=${x} y=${{ label: "ED_rel", format: "percent" }} height=${200} /><p class="note"><${Term} name="ed" />: higher values mean a larger distance.</p></div>
    </div>`;
  };

  const Similarity = ({ sets }) => {
    const n = d3.max(sets, ({ counts }) => counts.length);
    const totals = sets.map(({ counts }) => sum(counts));
    const columns = d3.range(n).map((i) => ({ label: (i / n).toFixed(n > 10 ? 2 : 1), values: sets.map(({ counts }, k) => share(counts[i], totals[k])) }));
    return html`<${Chart} kind="columns" title="Similarity to the held-out tasks" columns=${columns} fills=${sets.map(({ label }, i) => ({ label: `${label}, ${plural(totals[i], "task")}`, style: i }))}
      x=${{ label: "highest cosine to a held-out task" }} y=${{ label: "share of tasks", format: "percent" }} height=${200} />
      <p class="note"><${Term} name="similarity" />: bars near 1 mean that some tasks almost repeat a held-out task.</p>`;
  };

  /** Growth of the arms' task sets, measured by the words of the tasks. */
  const TaskSets = ({ run }) => {
    const found = coevo.useData(["runs", run, "task-set"], {}, { run });
    return html`<${Section} title="The task sets as a whole" id="task-sets">
      <${Loaded} of=${found} lines=${3}>${(of) => of.arms.length === 0 ? html`<p class="note">No tasks evolved in this run.</p>` : html`
        <${Diversity} of=${of} />
        ${of.similarity.length > 0 && html`<${Similarity} sets=${of.similarity} />`}`}<//>
    <//>`;
  };

  Object.assign(coevo, { HeldOut, RunMeasures, TaskSets, signalBars, RUN_SECTIONS: IDS });
})();
