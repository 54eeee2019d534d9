// Stored evaluations, and evaluations of a run on its held-out tasks: success by task type, episode
// lengths, and every episode or task.
"use strict";

(() => {
  const {
    html, link, useState, Words, Page, Loaded, Section, Figures, Table, Pager, Select, TextFilter, Choice, Tag,
    Empty, Facts, Outcome, Rate, Chart, Success, count, decimal, percent, given,
  } = coevo; // prettier-ignore

  const words = (name) => name.replaceAll("_", " ");

  // ---- by type ------------------------------------------------------------------------------

  /** Maximum number of drawn types; the ones with the most tasks are drawn. */
  const MOST_TYPES = 24;

  /** Success by task type, one kind of type at a time; there is at least one. */
  const ByType = ({ types, hrefOf, all }) => {
    const kinds = [...new Set(types.map(({ kind }) => kind))];
    const [chosen, choose] = useState("");
    const kind = kinds.includes(chosen) ? chosen : kinds[0];
    const mine = types.filter((one) => one.kind === kind);
    const shown = mine.length > MOST_TYPES ? d3.sort(mine, ({ tasks }) => -tasks).slice(0, MOST_TYPES) : mine;
    const rows = shown.map((one) => ({
      label: one.value, value: one.success, low: one.low, high: one.high, said: `of ${count(one.tasks)}`,
      href: hrefOf && hrefOf(`${kind}:${one.value}`),
    })); // prettier-ignore
    const left = mine.length - shown.length;
    const note = `Success with its 95\u202f% interval, and the number of tasks.${given(all) ? ` The vertical line marks the success on all tasks: ${percent(all)}.` : ""}${left ? ` Shows the ${shown.length} of ${shown.length + left} types with the most tasks.` : ""}`;
    return html`${kinds.length > 1 && html`<${Choice} label="Grouping of tasks" value=${kind} onChange=${choose} options=${kinds.map((one) => [one, words(one)])} />`}
      <${Chart} kind="intervals" title=${`Success by ${words(kind)}`} rows=${rows} at=${all} note=${note}
        x=${{ label: "success", format: "percent", domain: [0, 1] }} />`;
  };

  /** The number of episodes by a reason. */
  const Reasons = ({ title, of, textOf, hrefOf }) => {
    const rows = d3.sort(Object.entries(of), ([, n]) => -n).map(([name, n]) => ({ label: textOf(name), values: [n], href: hrefOf(name) }));
    return html`<${Chart} kind="rows" title=${title} rows=${rows} fills=${[{ label: "" }]} x=${{ label: "episodes", format: "count" }} />`;
  };

  const PassAtK = ({ passAt }) => {
    const points = Object.entries(passAt).map(([k, y]) => ({ x: Number(k), y }));
    if (points.length < 2) return null;
    return html`<${Chart} kind="lines" title="pass@k" height=${200} series=${[{ label: "pass@k", points }]}
      x=${{ label: "k (episodes per task)", format: "count", axis: "count", domain: [1, points[points.length - 1].x] }}
      y=${{ label: "pass@k", format: "percent" }}
      note="Probability that at least one of k episodes of a task succeeds (unbiased), over the tasks with at least k episodes." />`;
  };

  // ---- the list -----------------------------------------------------------------------------

  const Evals = () => {
    const found = coevo.useData(["evals"], {}, { run: "" });
    const tables = coevo.useData(["tables"], {}, { run: "" }).data || {};
    return html`<${Page} title="Evaluations" crumbs=${[["Runs", "#/"]]} wide>
      <${coevo.Tables} eval_tables=${tables.eval_tables} ledgers=${tables.ledgers} />
      <${Loaded} of=${found}>${({ evals }) =>
        evals.length
          ? html`<${Section} title="All evaluations">
              <${Table} label="Evaluations" rows=${evals} columns=${coevo.EVAL_COLUMNS} keyOf=${(one) => one.id} href=${(one) => (one.problem ? null : link(["evals", one.id]))} /><//>`
          : html`<${Empty} title="There are no evaluations yet.">
              <p>To evaluate a trained run: <code>coevo eval quickstart</code>. To evaluate a model: <code>coevo eval webshop --policy transformers:smollm2</code></p>
            <//>`}<//>
    <//>`;
  };

  // ---- one evaluation -----------------------------------------------------------------------

  const figuresOf = (data) => {
    const { eval: row, tokens } = data;
    const best = Object.keys(data.pass_at).map(Number).sort((x, y) => y - x)[0];
    return [
      ["Success", html`<${Success} of=${row} />`],
      best && [`pass@${best}`, percent(data.pass_at[best])],
      ["Mean score", decimal(data.score, 3)],
      given(data.scenario_success) && ["Scenarios", percent(data.scenario_success), "with all tasks solved"],
      ["Tasks", count(row.n_tasks), row.samples > 1 && `${row.samples} episodes each`],
      ["Episodes", count(row.done), row.done < row.total && `of ${count(row.total)}`],
      row.lost > 0 && ["Lost", count(row.lost), "excluded from all results"],
      ["Env steps", decimal(data.steps, 1), "per episode"],
      tokens.prompt + tokens.completion > 0 && ["Tokens", count(tokens.prompt + tokens.completion)],
      tokens.usd > 0 && ["Cost", `$${tokens.usd.toFixed(2)}`],
    ];
  };

  const EPISODE_COLUMNS = [
    { label: "Task", sort: "name", cell: (row) => html`<${Words} text=${row.name} most=${48} />` },
    { label: "Sample", num: true, cell: (row) => row.sample + 1 },
    { label: "Outcome", sort: "success", cell: (row) => html`<${Outcome} success=${row.success} end=${row.end_reason} />` },
    { label: "Score", num: true, sort: "score", cell: (row) => decimal(row.score) },
    { label: "Env steps", num: true, sort: "steps", cell: (row) => count(row.steps) },
    { label: "End reason", optional: true, cell: (row) => coevo.endOf(row) },
    { label: "Failure", optional: true, cell: (row) => coevo.failureOf(row) },
    { label: "Instruction", wide: true, cell: (row) => html`<${Words} text=${row.instruction} most=${180} />` },
  ];

  const FILTERS = ["q", "success", "end", "failure", "type", "sample", "task"];

  const Episodes = ({ data, params }) => {
    const { eval: row } = data;
    const asked = Object.fromEntries([...FILTERS, "sort", "page"].map((name) => [name, params[name] || ""]));
    const found = coevo.useData(["evals", row.id, "episodes"], asked);
    const columns = row.samples > 1 ? EPISODE_COLUMNS : EPISODE_COLUMNS.filter(({ label }) => label !== "Sample");
    return html`<${Section} title="Episodes" id="episodes">
      <div class="filters">
        <${TextFilter} value=${params.q} placeholder="Words in the task" />
        <${Select} label="Outcome" name="success" value=${params.success} options=${[["true", "solved"], ["false", "failed"]]} />
        <${Select} label="End reason" name="end" value=${params.end} options=${Object.keys(data.end_reasons).map((end) => [end, words(end)])} />
        <${Select} label="Failure" name="failure" value=${params.failure} options=${Object.keys(data.failures).map((kind) => [kind, kind])} />
        <${Select} label="Type" name="type" value=${params.type} options=${data.types.map((one) => [`${one.kind}:${one.value}`, `${words(one.kind)}: ${one.value}`])} />
      </div>
      <${Loaded} of=${found}>${(page) => html`
        <${Table} label="Episodes" rows=${page.rows} columns=${columns} keyOf=${(one) => one.id}
          href=${(one) => (one.stored ? link(["evals", row.id, "episodes", one.id]) : null)} source=${coevo.allRows(["evals", row.id, "episodes"], asked)}
          empty=${html`<${Empty} title="No episode matches these filters."><p>Remove a filter to see more.</p><//>`} />
        <${Pager} of=${page} noun="episode" />`}<//>
    <//>`;
  };

  const Lengths = ({ id, total }) => {
    const found = coevo.useRows(["evals", id, "episodes"], { run: "" });
    return html`<${Loaded} of=${found}>${({ rows }) => rows.length > 0 && html`
      <${coevo.LengthsChart} episodes=${rows} note=${rows.length < total ? `Includes only ${count(rows.length)} episodes.` : ""} />`}<//>`;
  };

  /** A field that opens a comparison with another policy on the same tasks. */
  const CompareWith = ({ a, others }) => {
    if (!others.length) return null;
    const go = (event) => event.target.value && coevo.go(link(["compare"], { a, b: event.target.value }));
    return html`<label class="field"><span>Compare with</span>
      <select onChange=${go}><option value="">choose…</option>
        ${others.map(([place, name]) => html`<option value=${place}>${name}</option>`)}
      </select></label>`;
  };

  /** The panel and the protocol of an evaluation, and the line to cite. */
  const Result = ({ panel, protocol, cite }) => html`<${Section} title="What this is a result of" id="result">
    <p>${panel.declared ? "The tasks are those of the panel" : "No panel was given; one was made from the tasks:"} <code>${panel.name}</code>, hash <code>${panel.hash.slice(0, 12)}</code>.
      Another result on a panel with this hash is a result on the same tasks. The settings below are the protocol, hash <code>${protocol.hash.slice(0, 12)}</code>. To cite the result:</p>
    <p class="prose mono">${cite}</p>
    <${Facts} value=${protocol.parts} label="Protocol" />
  <//>`;

  const Evaluation = ({ id, params }) => {
    const found = coevo.useData(["evals", id], {}, { run: "" });
    const list = coevo.useData(["evals"]).data;
    const row = found.data && found.data.eval;
    const alike = (other) => other.id !== id && !other.problem && other.benchmark === row.benchmark && other.split === row.split;
    const others = row && list ? list.evals.filter(alike).map((other) => [`evals/${other.id}`, other.name]) : [];
    const filter = (changes) => link(["evals", id], changes);
    return html`<${Page} title=${row ? row.name : "Evaluation"} crumbs=${[["Evaluations", "#/evals"]]} wide
      actions=${html`<${CompareWith} a=${`evals/${id}`} others=${others} />`}>
      <${Loaded} of=${found}>${(data) => html`
        <p class="note">${[
          coevo.policyOf(data.eval),
          `${data.eval.benchmark}, ${data.eval.split} tasks`,
          data.eval.source && `from ${data.eval.source}`,
          data.used_from && `used from ${data.used_from}, where it was played`,
        ].filter(Boolean).join(" · ")} ${!data.eval.finished && html`<${Tag} tone="accent">${data.eval.running ? "running" : "not finished"}<//>`}</p>
        ${data.notice && html`<p class="notice" role="note">${data.notice}</p>`}
        <${Figures} of=${figuresOf(data)} />
        ${data.types.length > 0 && html`<${Section} title="By task type"><${ByType} types=${data.types} all=${data.eval.success} hrefOf=${(type) => filter({ type })} /><//>`}
        <div class="chart-grid">
          <${PassAtK} passAt=${data.pass_at} />
          <${Lengths} id=${id} total=${data.eval.done} />
          <${Reasons} title="End reasons" of=${data.end_reasons} textOf=${words} hrefOf=${(end) => filter({ end })} />
          ${Object.keys(data.failures).length > 0 && html`<${Reasons} title="Failures" of=${data.failures} textOf=${(kind) => kind} hrefOf=${(failure) => filter({ failure })} />`}
        </div>
        <${Episodes} data=${data} params=${params} />
        ${data.cite && html`<${Result} panel=${data.panel} protocol=${data.protocol} cite=${data.cite} />`}
        <${Section} title="Setup"><${Facts} value=${data.config} label="Settings" /><//>`}<//>
    <//>`;
  };

  // ---- an evaluation of a run's arm -----------------------------------------------------------

  const CHANGES = [["", "all tasks"], ["worse", "got worse"], ["better", "got better"], ["failed", "failed"], ["solved", "solved"]];
  const CHANGE = {
    "": () => true,
    worse: (task) => task.before === true && !task.success,
    better: (task) => task.before === false && task.success,
    failed: (task) => !task.success,
    solved: (task) => task.success,
  };
  const SIZE = 50;

  const TASK_COLUMNS = [
    { label: "Task", cell: (task) => html`<${Words} text=${task.name} most=${48} />` },
    {
      label: "Outcome",
      cell: (task) =>
        task.episodes > 1
          ? html`<${Rate} n=${Math.round(task.share * task.episodes)} of=${task.episodes} />`
          : html`<${Outcome} success=${task.success} score=${task.score} end=${task.end_reason} />`,
    },
    { label: "Before", cell: (task) => (task.before === null ? coevo.NONE : html`<${Outcome} success=${task.before} />`) },
    { label: "Env steps", num: true, cell: (task) => count(task.steps) },
    { label: "End reason", optional: true, cell: (task) => coevo.endOf(task) },
    { label: "Failure", optional: true, cell: (task) => coevo.failureOf(task) },
    { label: "Instruction", wide: true, cell: (task) => html`<${Words} text=${task.instruction} most=${180} />` },
  ];

  const ArmEvaluation = ({ run, arm, step, params }) => {
    const found = coevo.useData(["runs", run, "evaluations", arm, step]);
    const place = (at, more = {}) => link(["runs", run, "evaluations", arm, at], more);
    return html`<${Page} title=${`${arm} on held-out tasks, step ${step}`} run=${run} wide
      crumbs=${[["Runs", "#/"], [run, link(["runs", run])], [arm, link(["runs", run, "arms", arm])]]}>
      <${Loaded} of=${found}>${(data) => {
        const shown = data.tasks
          .filter(CHANGE[params.change || ""] || CHANGE[""])
          .filter((task) => !params.failure || task.failure === params.failure)
          .filter((task) => !params.type || task.tags.includes(params.type));
        const failures = [...new Set(data.tasks.map((task) => task.failure))].filter(Boolean).sort();
        const pages = Math.max(1, Math.ceil(shown.length / SIZE));
        const page = Math.min(pages, Math.max(1, Number(params.page) || 1));
        const n = (change) => data.tasks.filter(CHANGE[change]).length;
        return html`
          <nav class="steps-nav" aria-label="Evaluations of this arm"><span class="soft">after step</span> ${data.steps.map(
            (one) => html`<a key=${one} href=${place(one, { change: params.change })} aria-current=${one === data.step ? "page" : null}>${one}</a> `,
          )}</nav>
          <${Figures} of=${[
            ["Success", html`<${Success} of=${data} />`],
            ["Tasks", count(data.tasks.length), data.split],
            ["Got better", count(n("better")), "since the previous evaluation"],
            ["Got worse", count(n("worse")), "since the previous evaluation"],
          ]} />
          ${data.types.length > 0 && html`<${Section} title="By task type"><${ByType} types=${data.types} all=${data.success} hrefOf=${(type) => place(data.step, { type })} /><//>`}
          <${Section} title="Tasks">
            <div class="filters">
              <${Select} label="Tasks" name="change" value=${params.change} options=${CHANGES.slice(1)} />
              <${Select} label="Failure" name="failure" value=${params.failure} options=${failures.map((kind) => [kind, kind])} />
              <${Select} label="Type" name="type" value=${params.type} options=${data.types.map((one) => [`${one.kind}:${one.value}`, `${words(one.kind)}: ${one.value}`])} />
            </div>
            <${Table} label="Held-out tasks" rows=${shown.slice((page - 1) * SIZE, page * SIZE)} columns=${TASK_COLUMNS} keyOf=${(task) => task.id}
              href=${(task) => task.stored && link(["runs", run, "evaluated", task.stored])} source=${() => shown}
              empty=${html`<${Empty} title="No task matches these filters." />`} />
            ${data.tasks.some((task) => task.episodes > 1) && html`<p class="note">A task counts as solved if at least half of its episodes succeed.</p>`}
            <${Pager} of=${{ total: shown.length, page, pages, per_page: SIZE }} noun="task" />
          <//>`;
      }}<//>
    <//>`;
  };

  coevo.views.Evals = Evals;
  coevo.views.Evaluation = ({ id, params }) => html`<${Evaluation} id=${id} params=${params} />`;
  coevo.views.ArmEvaluation = ArmEvaluation;
  coevo.route("evals", Evals);
  coevo.route("evals/:id", coevo.views.Evaluation);
  coevo.route("runs/:run/evaluations/:arm/:step", ArmEvaluation);
})();
