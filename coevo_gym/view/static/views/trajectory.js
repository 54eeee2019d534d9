// One training or evaluation episode, step by step: observations, pages, actions and the policy's
// candidates or tokens, signals, notes, and the grader's verdict.
"use strict";

(() => {
  const {
    html, cls, useEffect, useRef, useKeys, link, Words, Prose, Page, Loaded, Outcome, Facts, Choice,
    Section, Figures, Tag, count, decimal, given, plural,
  } = coevo; // prettier-ignore

  const hrefOf = (path) => `#/${path}`;
  /** The kind of an episode's page, such as "trajectories" of a run. */
  const kindOf = ({ of, step }) => (of === "training" ? "trajectories" : step === null ? "episodes" : "evaluated");
  /** The link to an episode of the same kind and run as `episode`. */
  const placeOf = (episode, id, params) => {
    const kind = kindOf(episode);
    return link([kind === "episodes" ? "evals" : "runs", episode.run, kind, id], params);
  };

  /** The episodes of the group as marks in a row; the current one is outlined. */
  const Siblings = ({ episode }) => {
    if (episode.siblings.length < 2) return null;
    return html`<nav class="siblings" aria-label="Episodes of this group">
      <span class="soft">${episode.of === "training" ? "Group" : "Same task"}</span>
      ${episode.siblings.map(
        (one) => html`<a key=${one.id} href=${placeOf(episode, one.id)} class=${cls("sibling", one.success ? "good" : "bad")}
          aria-current=${one.id === episode.id ? "page" : null}
          aria-label=${`Episode ${one.position + 1}: ${one.success ? "solved" : "failed"}, ${plural(one.steps, "step")}`}
          title=${`Episode ${one.position + 1}: ${one.success ? "solved" : "failed"} in ${plural(one.steps, "step")}, end reason: ${one.end_reason.replaceAll("_", " ")}`}>
          <span aria-hidden="true">${one.success ? "✓" : "✗"}</span></a>`,
      )}
    </nav>`;
  };

  const Head = ({ episode, kinds }) => {
    const { grade } = episode;
    return html`<div class="episode-head">
      <blockquote class="asked"><${Prose} text=${episode.instruction} most=${1500} label="Task" /></blockquote>
      <${Figures} of=${[
        ["Outcome", html`<${Outcome} success=${grade.success} />${grade.why && html`<span class="why">: <${Words} text=${grade.why} most=${200} /></span>`}`],
        ["Score", decimal(grade.score)],
        grade.failure && ["Failure", html`<span class="failure">${grade.failure.text}</span>`, grade.failure.modes.filter((mode) => mode !== grade.failure.label).join(", ")],
        ["End reason", grade.end_reason.replaceAll("_", " ")],
        ["Env steps", count(episode.steps.length)],
        ...coevo.spentBy(episode.steps),
        given(episode.advantage) && ["Advantage", coevo.signed(episode.advantage)],
        given(episode.policy_version) && ["Policy", `version ${count(episode.policy_version)}`],
      ]} />
      <div class="episode-row">
        <${Siblings} episode=${episode} />
        ${episode.signals.map((signal) => html`<${coevo.Kind} key=${signal.kind} kind=${signal.kind} kinds=${kinds} href="#signals" />`)}
      </div>
      ${episode.notice && html`<p class="notice" role="note">${episode.notice}</p>`}
    </div>`;
  };

  const Shown = ({ step, look, system }) => {
    const asText = look === "text";
    return html`<div class="shown">
      ${asText ? html`<${Prose} class="observation code" text=${step.observation} most=${3000} />` : html`<${coevo.BehindPage} page=${step.page} text=${step.observation} action=${step.action} />`}
      ${step.raw !== null && step.raw !== undefined && html`<details class="more"><summary>Original text of the env, without the interface</summary><${Prose} class="code" text=${step.raw} most=${3000} /></details>`}
      <${Messages} step=${step} system=${system} />
    </div>`;
  };

  /** The exact messages that the policy's model was sent before a step. */
  const Messages = ({ step, system }) => {
    const { messages, n_messages: all } = step;
    if (!all) return null;
    const words = messages.length === all ? plural(all, "message") : `${plural(messages.length, "new message")}, after ${all - messages.length} earlier`;
    return html`<details class="more"><summary>Sent to the model: ${words}</summary>
      ${messages.map((message, i) => html`<div key=${i}><p class="did-label">${message.role}</p>${
        message.role === "system" && message.text === system
          ? html`<p class="soft">The system prompt above.</p>`
          : html`<${Prose} class="observation code" text=${message.text} most=${3000} />`
      }</div>`)}
    </details>`;
  };

  const Step = ({ step, look, here, episode }) => {
    const place = placeOf(episode, episode.id, { step: step.number });
    return html`<article id=${`step-${step.number}`} class=${cls("step", { here, erred: step.error_kind })} tabindex="-1" aria-label=${`Step ${step.number} of ${episode.steps.length}`}>
      <div class="step-head">
        <h3><a href=${place} title="Link to this step">Step ${step.number}</a></h3>
        ${given(step.turn) && html`<${Tag} tone=${episode.grade.failure?.turn === step.turn ? "bad" : null} title="The user's turn">turn ${step.turn}<//>`}
        ${step.error_kind && html`<${Tag} tone="warn">no effect<//>`}
        <${coevo.StepLabels} episode=${episode} step=${step} />
        ${given(step.policy_version) && step.policy_version !== episode.policy_version && html`<${Tag} title="The weights were updated during the episode">policy ${step.policy_version}<//>`}
        ${given(step.advantage) && html`<${Tag} title="Advantage used for learning from this step">advantage ${coevo.signed(step.advantage)}<//>`}
        ${step.reward !== 0 && html`<${Tag} tone=${step.reward > 0 ? "good" : "bad"}>reward ${decimal(step.reward)}<//>`}
      </div>
      <div class="step-body"><${Shown} step=${step} look=${look} system=${episode.system} /><${coevo.Did} step=${step} /></div>
      <${coevo.StepExpected} episode=${episode} step=${step} />
    </article>`;
  };

  const Ending = ({ episode, look }) => {
    const { grade } = episode;
    return html`
      <article class="step last" id="step-end" tabindex="-1" aria-label="Last observation and verdict">
        <div class="step-head"><h3>After the last step</h3></div>
        <div class="step-body"><div class="shown">${
          look === "text"
            ? html`<${Prose} class="observation code" text=${episode.last_observation} most=${3000} />`
            : html`<${coevo.BehindPage} page=${episode.last_page} text=${episode.last_observation} />`
        }</div>
      <section class="verdict" id="verdict" aria-label="Grader's verdict">
        <div class="section-head"><h2>Grader's verdict</h2><${Outcome} success=${grade.success} score=${grade.score} end=${grade.end_reason} /></div>
        ${(grade.withheld || grade.notice) && html`<p class="notice">${grade.withheld || grade.notice}</p>`}
        ${grade.report && Object.keys(grade.report).length > 0 ? html`<${Facts} value=${grade.report} most=${80} label="The grader's report" />` : !grade.withheld && html`<p class="soft">The grader gave no details.</p>`}
      </section></div></article>`;
  };

  const Signals = ({ episode, kinds }) =>
    episode.signals.length > 0 &&
    html`<${Section} title="Signals" id="signals" note="Signals of this episode and the numbers behind them.">
      <div class="cards">${episode.signals.map(
        (signal) => html`<div class="card" key=${signal.kind}><h3><${coevo.Kind} kind=${signal.kind} kinds=${kinds} /></h3><${Facts} value=${signal.evidence} label=${`Evidence for ${signal.kind}`} /></div>`,
      )}</div>
    <//>`;

  const LOOKS = [
    ["page", "Page", "Observations as pages, if the benchmark has pages"],
    ["text", "Text", "Observations as the exact text that the policy received"],
  ];

  const Episode = ({ episode, kinds, params }) => {
    const [look, setLook] = coevo.useKept("look", "page");
    const at = Number(params.step) || 0;
    const steps = episode.steps.length;
    const first = useRef(true);
    const step = (by) => {
      const now = Number(coevo.paramsNow().step) || 0; // keys may arrive faster than the page is drawn
      coevo.setParams({ step: Math.min(steps + 1, Math.max(0, now + by)) || "" });
    };
    useEffect(() => {
      const node = at && document.getElementById(at > steps ? "step-end" : `step-${at}`);
      if (node) {
        node.scrollIntoView({ block: first.current ? "start" : "nearest" });
        node.focus({ preventScroll: true });
      }
      first.current = false;
    }, [at]);
    const beside = (by) => {
      const i = episode.siblings.findIndex((one) => one.id === episode.id) + by;
      const next = episode.siblings[i];
      if (next) coevo.go(placeOf(episode, next.id));
      return Boolean(next);
    };
    const onward = (id) => {
      if (id) coevo.go(placeOf(episode, id));
      return Boolean(id);
    };
    useKeys([
      { key: "j", does: "next step", run: () => step(1) },
      { key: "k", does: "previous step", run: () => step(-1) },
      { key: "l", does: "next episode of the group", run: () => beside(1) },
      { key: "h", does: "previous episode of the group", run: () => beside(-1) },
      { key: "n", does: "next episode of the run", run: () => onward(episode.after) },
      { key: "p", does: "previous episode of the run", run: () => onward(episode.before) },
      { key: "v", does: "show observations as pages or as text", run: () => setLook(look === "page" ? "text" : "page") },
      { key: "e", does: "grader's verdict", run: () => document.getElementById("verdict").scrollIntoView() },
    ]);
    return html`
      <${Head} episode=${episode} kinds=${kinds} />
      <${Signals} episode=${episode} kinds=${kinds} />
      <${coevo.EpisodeNotes} episode=${episode} hrefOfStep=${(step) => placeOf(episode, episode.id, { step })} />
      <div class="section-head conversation-head"><h2>Steps</h2><${Choice} label="Display of observations" value=${look} options=${LOOKS} onChange=${setLook} /></div>
      ${episode.system && html`<details class="more system"><summary>System prompt</summary><${Prose} class="code" text=${episode.system} most=${6000} /></details>`}
      ${episode.tools?.length > 0 && html`<details class="more system"><summary>Functions</summary><${Prose} class="code" text=${episode.tools.join("\n")} most=${6000} /></details>`}
      <${coevo.ShownWith} episode=${episode} />
      <${Outline} episode=${episode} at=${at} />
      ${episode.steps.map((step) => html`<${Step} key=${step.number} step=${step} look=${look} here=${step.number === at} episode=${episode} />`)}
      <${Ending} episode=${episode} look=${look} />`;
  };

  /** All actions as a list of links. */
  const Outline = ({ episode, at }) =>
    episode.steps.length > 2 &&
    html`<ol class="outline" aria-label="Steps of this episode">${episode.steps.map(
      (step) => html`<li key=${step.number}><a href=${placeOf(episode, episode.id, { step: step.number })} class=${cls({ erred: step.error_kind })} aria-current=${step.number === at ? "step" : null}>
        <span class="num soft">${step.number}</span> <${coevo.StepMarks} episode=${episode} number=${step.number} /><span class="mono"><${Words} text=${step.action} most=${60} /></span></a></li>`,
    )}</ol>`;

  const crumbsOfArm = ({ run, arm }) => [["Runs", "#/"], [run, link(["runs", run])], [arm, link(["runs", run, "arms", arm])]];
  const crumbsOf = (episode) =>
    kindOf(episode) === "episodes"
      ? [["Evaluations", "#/evals"], [episode.run, link(["evals", episode.run])]]
      : kindOf(episode) === "evaluated"
      ? [...crumbsOfArm(episode), [`evaluation at step ${episode.step}`, link(["runs", episode.run, "evaluations", episode.arm, episode.step])]]
      : [
          ...crumbsOfArm(episode),
          [`step ${episode.step}`, link(["runs", episode.run, "trajectories"], { arm: episode.arm, step: episode.step })],
          [`group ${episode.group}`, link(["runs", episode.run, "arms", episode.arm, "groups", episode.group])],
        ];

  const actionsOf = (episode) => html`
    ${episode.of === "training" && episode.task.id && html`<a class="button" href=${link(["runs", episode.run, "tasks", episode.task.id])}>Task</a>`}
    ${episode.siblings.length > 1 && html`<a class="button" href=${sideHref(episode)}>Compare with another episode</a>`}`;

  /** The link to this episode next to one of its group, if possible with another outcome. */
  const sideHref = (episode) => {
    const others = episode.siblings.filter((one) => one.id !== episode.id);
    const other = others.find((one) => one.success !== episode.grade.success) || others[0];
    const path = (id) => placeOf(episode, id).slice(2);
    return link(["side"], { a: path(episode.id), b: path(other.id) });
  };

  const View = ({ parts, params, run, of }) => {
    const found = coevo.useData(parts);
    const kinds = coevo.useKinds();
    const episode = found.data;
    const title = episode ? `${of === "evaluation" ? "Evaluation of" : "Episode of"} ${episode.task.name || "a task"}` : "Episode";
    return html`<${Page} title=${title} wide run=${parts[0] === "runs" ? run : undefined} tab=${of === "training" ? "trajectories" : undefined}
      crumbs=${episode ? crumbsOf(episode) : []} actions=${episode && actionsOf(episode)}>
      <${Loaded} of=${found}>${(data) => html`<${Episode} key=${data.id} episode=${data} kinds=${kinds} params=${params} />`}<//>
    <//>`;
  };

  coevo.views.Trajectory = ({ run, id, params }) => html`<${View} of="training" run=${run} parts=${["runs", run, "trajectories", id]} params=${params} />`;
  coevo.views.EvalEpisode = ({ run, id, params }) => html`<${View} of="evaluation" run=${run} parts=${["evals", run, "episodes", id]} params=${params} />`;
  coevo.views.Evaluated = ({ run, id, params }) => html`<${View} of="evaluation" run=${run} parts=${["runs", run, "evaluated", id]} params=${params} />`;
  coevo.route("runs/:run/evaluated/:id", coevo.views.Evaluated);
  coevo.route("runs/:run/trajectories/:id", coevo.views.Trajectory);
  coevo.route("evals/:run/episodes/:id", coevo.views.EvalEpisode);
  Object.assign(coevo, { Shown, hrefOf });
})();
