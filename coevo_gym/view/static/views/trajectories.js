// The list of training episodes with filters.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Table, Outcome, Kind, Select, TextFilter, Pager, Empty, decimal, count } = coevo;

  /** Kinds of signals as options of a filter. */
  const firing = (kinds) => Object.values(kinds).filter((kind) => kind.fires).map((kind) => [kind.name, kind.label]);

  /** The end reason of an episode; nothing if it only repeats the outcome. */
  const endOf = ({ success, end_reason: end }) => (end === (success ? "solved" : "failed") ? "" : end.replaceAll("_", " "));

  /** The kind of failure of an episode and its turn, in the benchmark's words; "" if unknown. */
  const failureOf = ({ failure, failed_turn: turn }) => (coevo.given(turn) ? `${failure} at turn ${turn}` : failure);

  const trajectoryColumns = (kinds, { place = true } = {}) => [
    { label: place ? "Task" : "Episode", wide: place, cell: (row) => (place ? html`<${Words} text=${row.task.instruction || row.task.name} most=${180} />` : html`<b>episode ${row.position + 1}</b>`) },
    { label: "Outcome", sort: place ? "success" : "", cell: (row) => html`<${Outcome} success=${row.success} score=${place ? null : row.score} />` },
    { label: "End reason", optional: true, cell: (row) => endOf(row) },
    { label: "Failure", optional: true, cell: (row) => failureOf(row) },
    { label: "Env steps", num: true, sort: place ? "steps" : "", cell: (row) => html`${count(row.steps)}${row.errors > 0 && html` <small class="soft" title="steps whose action had no effect">${row.errors} without effect</small>`}` },
    { label: "Signals", cell: (row) => html`<span class="arm-list">${row.signals.map((kind) => html`<${Kind} kind=${kind} kinds=${kinds} />`)}</span>` },
    { label: "Advantage", num: true, sort: place ? "advantage" : "", cell: (row) => coevo.signed(row.advantage) },
    ...(place ? [
      { label: "Arm", cell: (row) => html`<${Words} text=${row.arm} most=${32} />` },
      { label: "Learner step", num: true, sort: "step", cell: (row) => count(row.step) },
      { label: "Score", num: true, sort: "score", cell: (row) => decimal(row.score) },
    ] : []),
  ]; // prettier-ignore

  const ENDS = ["solved", "failed", "agent_done", "max_steps", "max_tokens", "context_overflow", "refused", "time_limit"].map((end) => [end, end.replaceAll("_", " ")]);
  const YES_NO = [["true", "solved"], ["false", "failed"]];

  /** A range of learner steps. */
  const StepFilter = ({ params }) => html`<span class="field-pair">
    <label class="field small-field"><span>From step</span><input type="number" min="0" value=${params.step || params.step_from || ""} onChange=${(event) => coevo.setParams({ step: "", step_from: event.target.value })} /></label>
    <label class="field small-field"><span>To step</span><input type="number" min="0" value=${params.step || params.step_to || ""} onChange=${(event) => coevo.setParams({ step: "", step_to: event.target.value })} /></label></span>`;

  /** The message of an empty list, with or without filters. */
  const NoMatch = ({ noun, children }) => {
    const { parts, params } = coevo.usePlace();
    const filtered = Object.keys(params).some((name) => !["page", "sort", "per_page"].includes(name));
    if (!filtered) return html`<${Empty} title=${`There are no ${noun}s yet.`}>${children}<//>`;
    return html`<${Empty} title=${`No ${noun} matches these filters.`}><a href=${link(parts)}>Remove all filters</a><//>`;
  };

  /** Active filters without a field of their own, each with a button that removes it. */
  const Held = ({ params, names }) => {
    const held = names.filter(([name]) => params[name]);
    if (!held.length) return null;
    return html`<p class="held">${held.map(([name, words]) => html`<button key=${name} type="button" class="tag" onClick=${() => coevo.setParams({ [name]: "" })} aria-label=${`Remove the filter: ${words} ${params[name]}`}>
      ${words} <b><${Words} text=${coevo.brief(params[name], 16)} /></b> <span aria-hidden="true">×</span></button>`)}</p>`;
  };

  coevo.views.Trajectories = ({ run, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "trajectories"], params, { run });
    const detail = coevo.useData(["runs", run]).data;
    const arms = (detail ? detail.arms : []).filter((arm) => arm.trained).map((arm) => [arm.name, arm.name]);
    const failures = found.data?.failures || [];
    const fired = [["any", "any"], ["none", "none"], ...firing(kinds)];
    return html`<${Page} title="Trajectories" crumbs=${[["Runs", "#/"], [run, link(["runs", run])]]} run=${run} tab="trajectories" wide>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${TextFilter} value=${params.q} label="Words in the task or the actions" placeholder="for example: click[buy now]" />
        <${Select} label="Arm" name="arm" value=${params.arm} options=${arms} />
        <${Select} label="Outcome" name="success" value=${params.success} options=${YES_NO} />
        <${Select} label="Signal" name="signal" value=${params.signal} options=${fired} />
        <${Select} label="End reason" name="end" value=${params.end} options=${ENDS} />
        <${Select} label="Failure" name="failure" value=${params.failure} options=${failures.map((kind) => [kind, kind])} />
        <${Select} label="Actions" name="error" value=${params.error} options=${[["true", "some without effect"]]} />
        <${StepFilter} params=${params} />
      </form>
      <${Held} params=${params} names=${[["task", "task"], ["group", "group"], ["version", "policy version"], ["advice", "advice"]]} />
      <${Loaded} of=${found}>${(page) => html`
        <${Table} label="Training episodes" rows=${page.rows} columns=${trajectoryColumns(kinds)} keyOf=${(row) => row.id}
          href=${(row) => link(["runs", run, "trajectories", row.id])} source=${coevo.allRows(["runs", run, "trajectories"], params)}
          empty=${html`<${NoMatch} noun="episode"><p>By default, a run stores the episodes of groups with a signal. To store all episodes, train with <code>--set store.record=all</code>.</p><//>`} />
        <${Pager} of=${page} noun="episode" />`}<//>
    <//>`;
  };

  coevo.route("runs/:run/trajectories", coevo.views.Trajectories);
  Object.assign(coevo, { firing, endOf, failureOf, trajectoryColumns, StepFilter, NoMatch, Held, YES_NO });
})();
