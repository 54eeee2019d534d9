// The policy's decision in a step: candidates with probabilities, or sampled tokens.
"use strict";

(() => {
  const { html, cls, useState, Words, Choice, probability, decimal, given, plural, visible } = coevo;
  const MOST_CHOICES = 8;
  const MOST_TOKENS = 1200;

  /** Candidates in order of probability; the chosen one is always among them. */
  const Choices = ({ choices, taken }) => {
    const [all, setAll] = useState(false);
    const order = choices.map((_, i) => i);
    const known = choices.some((choice) => given(choice.probability));
    if (known) order.sort((a, b) => (choices[b].probability ?? -1) - (choices[a].probability ?? -1));
    let shown = all ? order : order.slice(0, MOST_CHOICES);
    if (taken != null && !shown.includes(taken)) shown = [...shown.slice(0, -1), taken];
    const left = choices.length - shown.length;
    return html`<div class="choices">
      <p class="did-label">Chose from ${plural(choices.length, "candidate")}</p>
      <ol class="plain">${shown.map((i) => {
        const { text, probability: p } = choices[i];
        return html`<li key=${i} class=${cls("choice", { taken: i === taken })} aria-current=${i === taken ? "true" : null}>
          <span class="choice-bar" aria-hidden="true"><i style=${{ width: `${100 * (p || 0)}%` }}></i></span>
          <span class="choice-p num">${probability(p)}</span>
          <span class="mono choice-text"><${Words} text=${text} most=${160} />${i === taken && html`<span class="sr"> (chosen)</span>`}</span></li>`;
      })}</ol>
      ${(left > 0 || all) && choices.length > MOST_CHOICES && html`<button type="button" class="link" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${left} more`}</button>`}
      ${!known && html`<p class="soft">This run does not store the candidates' probabilities.</p>`}
    </div>`;
  };

  const COLOURS = [
    ["none", "Plain", "No colours"],
    ["logprob", "Log-probability", "Less likely tokens have a stronger colour"],
    ["advantage", "Advantage", "Advantage used for learning from the step"],
  ];

  /** The colour strength of a token. */
  const paint = (by, token, advantage) => {
    if (by === "logprob") return { "--tone": Math.min(1, Math.max(0, -token.logprob / 5)).toFixed(3) };
    if (by === "advantage" && given(advantage)) return { "--tone": Math.min(1, Math.abs(advantage) / 2).toFixed(3) };
    return null;
  };

  const Tokens = ({ tokens, advantage }) => {
    const [by, setBy] = coevo.useKept("tokens", "logprob");
    const [most, setMost] = useState(MOST_TOKENS);
    const sign = given(advantage) && advantage < 0 ? "worse" : "better";
    const total = tokens.reduce((sum, token) => sum + token.logprob, 0);
    return html`<div class="sampled">
      <div class="did-head"><p class="did-label">Sampled ${plural(tokens.length, "token")}, log-probability ${decimal(total, 1)}</p>
        <${Choice} label="Token colours" value=${by} options=${COLOURS} onChange=${setBy} /></div>
      <p class=${cls("tokens", `by-${by}`, by === "advantage" && sign)}>${tokens.slice(0, most).map((token, i) => {
        const text = token.text === null ? `⟨${token.id}⟩` : token.text;
        const title = `${JSON.stringify(text)}, id ${token.id}: probability ${probability(Math.exp(token.logprob))}, log ${decimal(token.logprob, 3)}`;
        return html`<span key=${i} class="tok" style=${paint(by, token, advantage)} title=${title}>${visible(text)}</span>`;
      })}</p>
      ${tokens.length > most && html`<button type="button" class="link" onClick=${() => setMost(most + 5 * MOST_TOKENS)}>Show more of the remaining ${plural(tokens.length - most, "token")}</button>`}
      ${by === "logprob" && html`<p class="legend soft"><span class="tok" style=${{ "--tone": "0" }}>certain</span> <span class="tok" style=${{ "--tone": "0.35" }}>17 %</span> <span class="tok" style=${{ "--tone": "1" }}>under 1 %</span></p>`}
      ${by === "advantage" && html`<p class="legend soft">${given(advantage) ? `Advantage of this step: ${coevo.signed(advantage, 3)}, the same for all its tokens.` : "This run does not store the advantages of this episode."}</p>`}
    </div>`;
  };

  const CALL_LOOKS = { plain: "", calls: "code", code: "code" };

  /** The tokens and wall times of steps, as pairs of a label and words; those not stored are left out. */
  const spentBy = (steps) => {
    const sum = (name) => (steps.some((step) => given(step[name])) ? steps.reduce((total, step) => total + (step[name] || 0), 0) : null);
    const [prompt, completion, answer, env] = ["prompt_tokens", "completion_tokens", "answer_s", "env_s"].map(sum);
    return [
      given(completion) && ["Tokens", `${coevo.count(prompt)} in, ${coevo.count(completion)} out`],
      (given(answer) || given(env)) && ["Time", `answer ${coevo.duration(answer)}, env ${coevo.duration(env)}`],
    ].filter(Boolean);
  };

  /** The action of a step and the policy's decision. */
  const Did = ({ step }) => {
    const look = CALL_LOOKS[step.page.action] || "";
    return html`<div class="did">
      ${step.tokens && html`<${Tokens} tokens=${step.tokens} advantage=${step.advantage} />`}
      ${!step.tokens && step.said && step.said.trim() !== step.action.trim() && html`<details class="said" open=${step.said.length < 1200}><summary class="did-label">Answer</summary><${coevo.Prose} text=${step.said} most=${2000} /></details>`}
      <p class="did-label">Action</p>
      <${coevo.Prose} class=${cls("action mono", look)} text=${step.action} most=${2400} />
      ${step.error_kind && html`<p class="had-no-effect"><b>No effect:</b> <${Words} text=${step.error_kind} /></p>`}
      ${step.choices && html`<${Choices} choices=${step.choices} taken=${step.taken} />`}
      <p class="spent">${spentBy([step]).map(([label, words]) => html`<span key=${label} title=${label === "Tokens" ? "Tokens of the prompt and of the answer" : "Wall time of the answer and of the env step"}>${label.toLowerCase()}: ${words}</span>`)}</p>
      <${More} step=${step} />
    </div>`;
  };

  /** Further data of a step. */
  const More = ({ step }) => {
    const facts = {};
    if (step.calls.length) facts["engine calls"] = step.calls;
    if (step.terminated) facts.end = "task ended";
    if (step.truncated) facts.end = "truncated";
    const extras = Object.keys(step.extras).length > 0;
    return html`${Object.keys(facts).length > 0 && html`<${coevo.Facts} value=${facts} label="Numbers of this step" />`}
      ${extras && html`<details class="more"><summary>More data</summary><${coevo.Facts} value=${step.extras} /></details>`}
      ${step.page.admissible?.length > 0 && html`<details class="more"><summary>${plural(step.page.admissible.length, "possible action")}</summary>
        <ul class="plain mono admissible">${step.page.admissible.map((action) => html`<li><${Words} text=${action} most=${160} /></li>`)}</ul></details>`}
      ${step.cut && html`<p class="soft">A text in this step was too long and has been truncated.</p>`}`;
  };

  Object.assign(coevo, { Did, Choices, Tokens, spentBy });
})();
