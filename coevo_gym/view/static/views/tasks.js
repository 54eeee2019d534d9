// The list of a run's tasks with filters.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Table, Tag, Kind, Rate, Select, TextFilter, Pager, count } = coevo;

  const Origin = ({ task }) => {
    if (task.origin !== "evolved") return html`<${Tag}>${task.origin || "unknown"}<//>`;
    const first = task.signal === "unguided" && /-0$/.test(task.round);
    return html`<${Tag} tone="accent" title=${first ? "Found before training" : "Found during training"}>${first ? "first set" : "evolved"}<//>`;
  };

  const practiceOf = (task, arm) => task.practice.find((one) => one.arm === arm) || { episodes: 0, successes: 0 };

  const taskColumns = (kinds, arms) => [
    { label: "Task", wide: true, sort: "name", cell: (task) => html`<${Words} text=${task.instruction || task.name} most=${200} />` },
    { label: "Origin", cell: (task) => html`<${Origin} task=${task} />` },
    { label: "Found in", sort: "found", cell: (task) => (task.round ? html`${task.round}${task.signal && html` <${Kind} kind=${task.signal} kinds=${kinds} />`}` : html`<span class="soft">initial task set</span>`) },
    ...(arms.length > 1 && arms.length < 4
      ? arms.map((arm) => ({ label: arm, cell: (task) => html`<${Rate} n=${practiceOf(task, arm).successes} of=${practiceOf(task, arm).episodes} />` }))
      : []),
    { label: "Success", num: true, sort: "success", cell: (task) => coevo.percent(task.success, 0) },
    { label: "Episodes", num: true, sort: "episodes", cell: (task) => count(task.episodes) },
    { label: "Descendants", num: true, sort: "children", cell: (task) => (task.children ? count(task.children) : coevo.NONE) },
  ];

  const SHARES = [["0,0", "never"], ["0.01,0.49", "less than half"], ["0.5,0.99", "half or more"], ["1,1", "always"]];

  /** A range of success, as two filters of the API. */
  const SuccessFilter = ({ params }) => {
    const value = params.success_from || params.success_to ? `${params.success_from},${params.success_to}` : "";
    const set = (event) => {
      const [from = "", to = ""] = event.target.value.split(",");
      coevo.setParams({ success_from: from, success_to: to });
    };
    return html`<label class="field"><span>Solved</span><select onChange=${set}>
      <option value="" selected=${!value}>any</option>
      ${SHARES.map(([key, words]) => html`<option value=${key} selected=${key === value}>${words}</option>`)}</select></label>`;
  };

  const ORIGINS = [["native", "benchmark"], ["evolved", "found in this run"]];
  const PRACTISED = [["true", "with episodes"], ["false", "without episodes"]];

  /** The rounds of a run's last arm, which usually has the most, as options of a filter. */
  const useRounds = (run, arms) => {
    const last = arms[arms.length - 1];
    const rows = coevo.useData(last ? ["runs", run, "arms", last, "rounds"] : null).data?.rows || [];
    return rows.map((round) => [round.id, round.first ? `${round.id}, first set` : round.id]);
  };

  coevo.views.Tasks = ({ run, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "tasks"], { sort: "-episodes", ...params }, { run });
    const names = (coevo.useData(["runs", run]).data?.arms || []).filter((arm) => arm.trained).map((arm) => arm.name);
    const rounds = useRounds(run, names);
    const options = Object.values(kinds).map((kind) => [kind.name, kind.label]);
    return html`<${Page} title="Tasks" crumbs=${[["Runs", "#/"], [run, link(["runs", run])]]} run=${run} tab="tasks" wide actions=${html`<a class="button" href="#task-sets">The task sets as a whole</a>`}>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${TextFilter} value=${params.q} label="Words in the task" />
        <${Select} label="Pool of" name="arm" value=${params.arm} options=${names.map((name) => [name, name])} />
        <${Select} label="Origin" name="origin" value=${params.origin} options=${ORIGINS} />
        <${Select} label="Found in" name="round" value=${params.round} options=${rounds} />
        <${Select} label="Explored from" name="signal" value=${params.signal} options=${options} />
        <${Select} label="Episodes" name="practised" value=${params.practised} options=${PRACTISED} />
        <${SuccessFilter} params=${params} />
      </form>
      <${Loaded} of=${found}>${(page) => html`
        <${Table} label="Tasks" rows=${page.rows} columns=${taskColumns(kinds, params.arm ? [] : names)} keyOf=${(task) => task.id} href=${(task) => link(["runs", run, "tasks", task.id])} source=${coevo.allRows(["runs", run, "tasks"], { sort: "-episodes", ...params })}
          empty=${html`<${coevo.NoMatch} noun="task"><p>Tasks appear here after an arm's first step.</p><//>`} />
        <${Pager} of=${page} noun="task" />`}<//>
      <${coevo.TaskSets} run=${run} />
    <//>`;
  };

  coevo.route("runs/:run/tasks", coevo.views.Tasks);
  Object.assign(coevo, { Origin, practiceOf, useRounds });
})();
