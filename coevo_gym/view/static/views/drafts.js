// Drafts: proposed tasks, the verdict of each gate, and rejections by gate.
"use strict";

(() => {
  const { html, cls, link, useMemo, Words, Prose, Page, Loaded, Section, Table, Tag, Kind, Facts, Outcome, Select, TextFilter, Pager, Figures, count, percent, plural } = coevo;

  const Fate = ({ draft }) => {
    if (draft.accepted) return html`<${Tag} tone="good">accepted<//>`;
    if (draft.gate === "hold") return html`<${Tag} tone="warn">held for review<//>`;
    return html`<${Tag} tone="bad">${draft.gate}<//>`;
  };

  const draftColumns = (kinds, { round = true } = {}) => [
    { label: "Draft", wide: true, sort: round ? "task" : "", cell: (draft) => html`<${Words} text=${draft.instruction || draft.id || "skipped context"} most=${200} />` },
    { label: "Verdict", sort: round ? "gate" : "", cell: (draft) => html`<${Fate} draft=${draft} />` },
    { label: "Reason", wide: true, cell: (draft) => html`<${Words} text=${draft.reason} most=${220} />` },
    { label: "Explored from", sort: round ? "signal" : "", cell: (draft) => draft.signal && html`<${Kind} kind=${draft.signal} kinds=${kinds} />` },
    ...(round ? [
      { label: "Arm", cell: (draft) => html`<${Words} text=${draft.arms.join(", ")} most=${48} />` },
      { label: "Round", sort: "found", cell: (draft) => draft.round },
    ] : []),
  ]; // prettier-ignore

  const draftHref = (run) => (draft) => (draft.id ? link(["runs", run, "drafts", draft.id], {}) : null);

  /** Rejections by gate, with the most common reasons. */
  const Gates = ({ page, params, run }) => {
    const all = Object.values(page.gates).reduce((sum, n) => sum + n, 0) + page.accepted;
    const rows = useMemo(
      () => [
        ...Object.entries(page.gates).map(([gate, n]) => ({ label: gate, values: [n], href: link(["runs", run, "drafts"], { ...params, gate, accepted: "", page: "" }) })),
        { label: "accepted", values: [page.accepted], href: link(["runs", run, "drafts"], { ...params, gate: "", accepted: "true", page: "" }) },
      ],
      [page],
    );
    const [worst] = Object.entries(page.gates).filter(([gate]) => gate !== "hold");
    return html`<div class="gates">
      <div>
        ${worst && html`<p class="headline"><b>${worst[0]}</b> rejects the most: ${count(worst[1])} of ${plural(all, "draft")} (${percent(worst[1] / all, 0)}).</p>`}
        <${coevo.Chart} kind="rows" title="Drafts by verdict" rows=${rows} fills=${[{ label: "drafts", style: 0 }]} x=${{ label: "drafts" }} none="No drafts yet." />
      </div>
      <div class="reasons"><h3>Most common reasons</h3>
        ${Object.keys(page.examples).length === 0 && html`<p class="soft">No rejected drafts.</p>`}
        ${Object.entries(page.examples).map(
          ([gate, reasons]) => html`<details key=${gate} open=${gate === (params.gate || worst?.[0])}><summary><b>${gate}</b> <span class="soft num">${count(page.gates[gate])}</span></summary>
            <ul class="plain">${Object.entries(reasons).map(([reason, n]) => html`<li class="reason"><span class="num soft">${count(n)}×</span> <${Words} text=${reason} most=${260} /></li>`)}</ul></details>`,
        )}
      </div>
    </div>`;
  };

  const FATES = [["true", "accepted"], ["false", "rejected or held"]];

  coevo.views.Drafts = ({ run, params }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "drafts"], params, { run });
    const arms = (coevo.useData(["runs", run]).data?.arms || []).filter((arm) => arm.trained).map((arm) => [arm.name, arm.name]);
    const rounds = coevo.useRounds(run, arms.map(([name]) => name));
    const gates = Object.keys(found.data?.gates || {}).map((gate) => [gate, gate]);
    return html`<${Page} title="Drafts and gates" crumbs=${[["Runs", "#/"], [run, link(["runs", run])]]} run=${run} tab="drafts" wide>
      <p class="note">A draft is a proposed task. Gates check each draft in order, for example that it can be solved and is new. The first gate that rejects a draft decides.</p>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${TextFilter} value=${params.q} label="Words in the task or the reason" />
        <${Select} label="Arm" name="arm" value=${params.arm} options=${arms} />
        <${Select} label="Round" name="round" value=${params.round} options=${rounds} />
        <${Select} label="Gate" name="gate" value=${params.gate} options=${gates} />
        <${Select} label="Verdict" name="accepted" value=${params.accepted} options=${FATES} />
        <${Select} label="Explored from" name="signal" value=${params.signal} options=${Object.values(kinds).map((kind) => [kind.name, kind.label])} />
        <${coevo.StepFilter} params=${params} />
      </form>
      <${Loaded} of=${found}>${(page) => html`
        ${(page.total > 0 || params.gate) && html`<${Gates} page=${page} params=${params} run=${run} />`}
        <${Table} label="Drafts" rows=${page.rows} columns=${draftColumns(kinds)} keyOf=${(draft) => `${draft.arm} ${draft.round} ${draft.position}`} href=${draftHref(run)} source=${coevo.allRows(["runs", run, "drafts"], params)}
          empty=${html`<${coevo.NoMatch} noun="draft"><p>Evolution rounds propose drafts. Arms with a fixed task set do not have any.</p><//>`} />
        <${Pager} of=${page} noun="draft" />`}<//>
    <//>`;
  };

  /** Actions with their results, in order. */
  const Exchanges = ({ of, label }) => html`<ol class="exchanges" aria-label=${label}>${of.map(
    (one) => html`<li class=${cls({ erred: one.error_kind })}><p class="mono"><${Words} text=${one.action} most=${240} /></p>
      ${one.error_kind && html`<p class="had-no-effect"><b>No effect:</b> <${Words} text=${one.error_kind} /></p>`}
      <${Prose} class="soft small" text=${one.observation} most=${360} /></li>`,
  )}</ol>`;

  /** The starting point of an exploration. */
  const Context = ({ context, kinds, run, open }) => html`<div class="card context">
    <h3><${Kind} kind=${context.kind} kinds=${kinds} />${context.task?.id && html` <span class="soft">in the task</span> <a href=${link(["runs", run, "tasks", context.task.id])}><${Words} text=${context.task.instruction || context.task.name} most=${160} /></a>`}</h3>
    ${context.summary && html`<${Prose} text=${context.summary} />`}
    ${context.target?.length > 0 && html`<p>Target: ${context.target.map((tag) => html`<${Tag}>${tag}<//> `)}</p>`}
    ${context.signal && html`<details class="more" open=${open}><summary>Evidence for the signal</summary><${Facts} value=${context.signal.evidence || context.signal} /></details>`}
    ${context.brief && html`<details class="more"><summary>Analysis of the rollout</summary><${Facts} value=${context.brief} /></details>`}
    ${context.evidence?.length > 0 && html`<details class="more" open=${open}><summary>Rollout ${context.actions?.length ? html`<${Outcome} success=${context.success} />` : ""}</summary><${Exchanges} of=${context.evidence} label="Rollout" /></details>`}
    ${context.contrast?.length > 0 && html`<details class="more"><summary>Rollout from the same group with the opposite outcome</summary><ol class="mono">${context.contrast.map((action) => html`<li><${Words} text=${action} most=${200} /></li>`)}</ol></details>`}
    ${context.problems?.length > 0 && html`<ul class="notes">${context.problems.map((problem) => html`<li><${Words} text=${problem} most=${400} /></li>`)}</ul>`}
  </div>`;

  const MARKS = { true: ["✓", "passed", "good"], false: ["✗", "rejected", "bad"], null: ["·", "not reached", "soft"] };

  const GateList = ({ gates }) => html`<ol class="gate-list">${gates.map(({ gate, passed, said }) => {
    const [mark, words, tone] = MARKS[passed];
    return html`<li key=${gate} class=${tone}><span class="gate-mark" aria-hidden="true">${mark}</span><b>${gate}</b> <span class="soft">${words}</span>${said && html`<${Prose} class="gate-said" text=${said} most=${800} />`}</li>`;
  })}</ol>`;

  /** The discovery of a task: the starting point, the walks, and the verdicts of the gates. */
  const Story = ({ story, kinds, run, open = true }) => html`
    ${story.context && html`<${Section} title="Starting point"><${Context} context=${story.context} kinds=${kinds} run=${run} open=${open} /><//>`}
    <${Section} title="Exploration" id="walks">
      ${story.walks.length === 0 && coevo.lacks("trajectories") && html`<p class="soft">This file does not contain walks.</p>`}
      ${story.walks.length === 0 && !coevo.lacks("trajectories") && html`<p class="soft">No exploration: rules made this draft from its parent task.</p>`}
      ${story.walks.map((walk) => html`<details class="walk" key=${walk.number} open=${story.walks.length === 1 || walk.number === 0}><summary><b>Walk ${walk.number + 1}</b> <span class="soft">${plural(walk.exchanges.length, "action")}</span></summary><${Exchanges} of=${walk.exchanges} label=${`Walk ${walk.number + 1}`} /></details>`)}
      ${story.proposal && html`<details class="more"><summary>The model's proposal</summary><${Facts} value=${story.proposal} /></details>`}
      ${story.actions.length > 0 && html`<details class="more" open><summary>Proposed reference solution</summary><ol class="mono">${story.actions.map((action) => html`<li><${Words} text=${action} most=${240} /></li>`)}</ol></details>`}
    <//>
    <${Section} title="Gate verdicts" id="gates"><${GateList} gates=${story.gates} /><//>`;

  coevo.views.Draft = ({ run, draft }) => {
    const kinds = coevo.useKinds();
    const found = coevo.useData(["runs", run, "drafts", draft]);
    return html`<${Page} title=${found.data ? `Draft: ${coevo.cut(found.data.asked || found.data.draft.instruction || draft, 160)}` : "Draft"} crumbs=${[["Runs", "#/"], [run, link(["runs", run])], ["Drafts", link(["runs", run, "drafts"])]]} run=${run} tab="drafts"
      actions=${found.data?.draft.task && html`<a class="button" href=${link(["runs", run, "tasks", found.data.draft.task.id])}>Accepted task</a>`}>
      <${Loaded} of=${found}>${(story) => html`
        <p class="fate"><${Fate} draft=${story.draft} /> ${story.draft.reason && html`<${Words} text=${story.draft.reason} most=${600} />`}</p>
        <${Figures} of=${[["Arm", story.draft.arms.join(", ")], ["Round", html`<a href=${link(["runs", run, "arms", story.draft.arm, "rounds", story.draft.round])}>${story.draft.round}</a>`], ["After step", count(story.draft.step)]]} />
        ${story.decision && html`<p class="notice">Manual review: ${story.decision.what}${story.decision.reason && html`: <${Words} text=${story.decision.reason} most=${400} />`}</p>`}
        <${Story} story=${story} kinds=${kinds} run=${run} />
        ${story.elsewhere.length > 0 && html`<${Section} title="Same draft in other rounds"><ul>${story.elsewhere.map((one) => html`<li>${one.arm}, ${one.round}: ${one.accepted ? "accepted" : one.gate}</li>`)}</ul><//>`}
        <details class="more"><summary>Draft data</summary><${Facts} value=${story.body} most=${120} /></details>`}<//>
    <//>`;
  };

  coevo.route("runs/:run/drafts", coevo.views.Drafts);
  coevo.route("runs/:run/drafts/:draft", coevo.views.Draft);
  Object.assign(coevo, { Fate, draftColumns, draftHref, Context, Exchanges, GateList, Story });
})();
