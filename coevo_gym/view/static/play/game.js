// Requests to the server, each with the page's token, and the page of one episode: the task, the
// board, and the grade at the end.
"use strict";

(() => {
  const { html, cls, useState, useEffect, useRef, useCallback } = coevo;
  const play = (coevo.play = {});
  const token = document.querySelector('meta[name="play-token"]').content;

  /** A refused request: the message, and the current episode if it has changed. */
  class Refused extends Error {
    constructor(status, told) {
      super(told.message || `The server answered with status ${status}.`);
      this.status = status;
      this.state = told.state || null;
    }
  }

  /** Send a GET request for `path`, or a POST request with a `body`. */
  play.ask = async (path, body) => {
    let response;
    try {
      response = await fetch(`api/play/${path}`, {
        method: body === undefined ? "GET" : "POST",
        headers: {
          "X-Play-Token": token,
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
      });
    } catch {
      throw new Error("The server is not running. Start `coevo play --web` again.");
    }
    const told = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refused(response.status, told);
    return told;
  };

  /** The newest state of an episode, with the past steps that the page knew before. */
  play.merged = (before, now) => ({
    ...now,
    past: [...((before && before.past) || []).slice(0, now.from), ...now.past],
  });

  const ENDS = {
    solved: "task solved",
    failed: "episode ended without success",
    agent_done: "you gave up",
    max_steps: "no steps left",
    time_limit: "time limit",
  };

  /** An engine's code such as "not_admissible" as words; sentences are unchanged. */
  const worded = (reason) => (/^\w+$/.test(reason) ? `${reason.replaceAll("_", " ")}.` : reason);

  /** The grader's checks, failures first. */
  const Checks = ({ checks }) => {
    const sorted = [...checks.filter((one) => one.passed === false), ...checks.filter((one) => one.passed !== false)];
    return html`<ul class="plain checks" aria-label="Grader's checks">
      ${sorted.map(
        ({ name, passed, said }, i) => html`<li key=${i}>
          <span class=${cls("mark", { good: passed === true, bad: passed === false })} aria-hidden="true">${passed === true ? "✓" : passed === false ? "✗" : "·"}</span>
          <span><span class="sr">${passed === true ? "passed: " : passed === false ? "failed: " : ""}</span><${coevo.Prose} text=${name} most=${600} /></span>
          <span class="soft"><${coevo.Words} text=${said} /></span>
        </li>`,
      )}
    </ul>`;
  };

  const Grade = ({ state, again, keep, busy }) => {
    const { grade, keep: kept, score } = state;
    const heading = useRef(null);
    useEffect(() => {
      heading.current.focus({ preventScroll: false });
    }, []);
    return html`<section class=${cls("grade", grade.success ? "good" : "bad")} aria-label="Grade">
      <h2 ref=${heading} tabindex="-1">${grade.success ? "✓ Solved" : "✗ Not solved"}</h2>
      <${coevo.Figures} of=${[
        ["Score", coevo.decimal(grade.score)],
        ["Reward", coevo.decimal(grade.reward)],
        ["Steps", `${grade.steps} of ${state.max_steps}`],
        ["End reason", ENDS[grade.end_reason] || grade.end_reason],
      ]} />
      ${grade.checks.length > 0 && html`<${Checks} checks=${grade.checks} />`}
      <div class="grade-next">
        <button type="button" class="primary" disabled=${busy} onClick=${() => again(null)}>${score ? "Next task" : "Another task"}</button>
        ${!score && html`<button type="button" disabled=${busy} onClick=${() => again(state.task.id)}>Play again</button>`}
        ${kept.kept
          ? html`<span role="status">Saved as a demonstration in <code>${kept.file}</code></span>`
          : kept.why_not
            ? html`<span class="soft small">${kept.why_not}</span>`
            : html`<button type="button" disabled=${busy} onClick=${keep}>Save as a demonstration</button>`}
      </div>
      ${score && html`<${play.Score} score=${score} />`}
    </section>`;
  };

  const Fault = ({ fault, goOn, busy }) => html`<div class="problem" role="alert">
    <p class="empty-title">The engine failed</p>
    <p>This is an infrastructure error. The episode is not graded or counted.</p>
    <${coevo.Prose} class="mono small" text=${fault} most=${1500} />
    <p><button type="button" class="primary" disabled=${busy} onClick=${goOn}>Continue the episode</button>
      <a class="button" href="#/">Another task</a></p>
  </div>`;

  /** An episode: its state, the latest error, a flag for a pending request, and a function to send. */
  const useGame = (id) => {
    const [state, setState] = useState(null);
    const [wrong, setWrong] = useState(null);
    const [busy, setBusy] = useState(false);
    const now = useRef(null);
    const waiting = useRef(false);
    const take = (told) => {
      now.current = play.merged(now.current, told);
      setState(now.current);
    };
    const send = useCallback(
      async (what, body) => {
        if (waiting.current) return null;
        waiting.current = true;
        setBusy(true);
        setWrong(null);
        try {
          const told = await play.ask(what ? `games/${id}/${what}` : `games/${id}`, body);
          if (told.id) take(told);
          return told;
        } catch (error) {
          if (error.state) take(error.state);
          setWrong(error);
          return null;
        } finally {
          waiting.current = false;
          setBusy(false);
        }
      },
      [id],
    );
    useEffect(() => {
      now.current = null;
      setState(null);
      send("");
    }, [id]);
    return { state, wrong, busy, send };
  };

  play.Score = ({ score }) => html`<p class="soft small score">Score <b>${score.name}</b>:
    ${" "}${score.solved} of ${score.played} solved, ${score.tasks - score.played} tasks left. Saved in <code>${score.folder}</code>.</p>`;

  play.Game = ({ id }) => {
    const { state, wrong, busy, send } = useGame(id);
    const [sure, setSure] = useState(false);
    useEffect(() => setSure(false), [state && state.step]);
    useEffect(() => {
      document.title = `${state ? state.task.name : "Episode"} · coevo play`;
    }, [state && state.task.name]);
    if (!state) {
      return html`<main id="main">${wrong
        ? html`<${coevo.Empty} title=${wrong.message}><a href="#/">All tasks</a><//>`
        : html`<p class="boot" role="status">The engine is starting…</p>`}</main>`;
    }
    const act = (action) => send("act", { action, step: state.step });
    const again = async (task) => {
      const begun = await play.ask("games", task ? { task } : {}).catch((error) => error);
      if (begun.id) coevo.go(coevo.link(["game", begun.id]));
      else coevo.go("#/");
    };
    const over = Boolean(state.grade);
    const left = state.max_steps - state.step;
    return html`<main id="main" class=${cls("game", { wide: !over })} aria-busy=${busy ? "true" : null}>
      <nav class="crumbs" aria-label="Breadcrumbs"><ol><li><a href="#/">Tasks</a></li><li><${coevo.Words} text=${state.task.name} most=${80} /></li></ol></nav>
      <section class="asked" aria-label="Task">
        <h1 class="sr">${state.task.name}</h1>
        <${coevo.Prose} text=${state.instruction} most=${3000} />
        <div class="asked-foot"><span class="soft num">${over ? `${coevo.plural(state.step, "step")} taken` : `Step ${state.step + 1} of ${state.max_steps}`}</span>
          ${!over && left <= 3 && html`<span class="tag warn">${left} ${left === 1 ? "step" : "steps"} left</span>`}
          <span class="grow"></span>
          ${busy && html`<span class="working soft" role="status">Working…</span>`}
          ${!over && !state.fault && (sure
            ? html`<span>Give up? The episode ends and is graded.</span>
                <button type="button" onClick=${() => send("give-up", { step: state.step })}>Give up</button>
                <button type="button" class="quiet" onClick=${() => setSure(false)}>Continue</button>`
            : html`<button type="button" class="quiet" onClick=${() => setSure(true)}>Give up</button>`)}
        </div>
      </section>
      ${wrong && html`<p class="bad-words" role="alert">${wrong.message}</p>`}
      ${state.refusal && html`<div class="refusal" role="alert">
        <p><b>No step taken.</b> <${coevo.Words} text=${worded(state.refusal.reason)} most=${600} /></p>
        ${state.refusal.shown && state.refusal.shown !== state.observation && html`<${coevo.Prose} class="mono small" text=${state.refusal.shown} most=${3000} />`}
      </div>`}
      ${state.fault && html`<${Fault} fault=${state.fault} busy=${busy} goOn=${() => send("go-on", {})} />`}
      ${over && html`<${Grade} state=${state} again=${again} busy=${busy} keep=${() => send("keep", {})} />`}
      ${!state.fault && html`<${play.Board} key=${id} state=${state} act=${act} busy=${busy} over=${over} />`}
      <p class="sr" role="status" aria-live="polite">${over ? "The episode has ended." : `Step ${state.step + 1}.`}</p>
    </main>`;
  };
})();
