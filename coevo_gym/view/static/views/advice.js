// Advice: the texts in an arm's memories, their usefulness over time, and the episodes that received
// them.
"use strict";

(() => {
  const { html, link, useMemo, Words, Prose, Page, Loaded, Section, Table, Tag, Figures, Empty, Chart, count, plural, signed, given } = coevo;

  const inWords = (name) => name.replaceAll("_", " ");
  const capital = (name) => name.charAt(0).toUpperCase() + name.slice(1);

  /** The name of an arm's advice, such as "Experiences". */
  const nameOf = (rows) => {
    const names = [...new Set(rows.map(({ memory }) => inWords(memory)))];
    return names.length === 1 ? capital(names[0]) : "Advice";
  };

  /** The text of the advice itself: the one with a known name, or the first one. */
  const textOf = (texts) => texts.content ?? Object.values(texts)[0] ?? "";
  const whenOf = (texts) => texts.when_to_use ?? "";

  const State = ({ of }) => html`<${Tag} tone=${of.held ? "good" : "warn"}>${of.held ? "in the pool" : `dropped: ${inWords(of.why)}`}<//>`;

  const Utility = ({ of }) => {
    if (!given(of.utility)) return html`<span class="soft">not measured</span>`;
    const tone = of.utility > 0 ? "good" : of.utility < 0 ? "bad" : "";
    return html`<span class=${coevo.cls("num", tone && `outcome ${tone}`)}>${signed(of.utility)}</span>`;
  };

  const placeOf = (run, arm, id) => link(["runs", run, "arms", arm, "advice", id]);

  const columns = () => [
    { label: "Advice", wide: true, cell: (row) => html`<${Words} text=${textOf(row.texts)} most=${200} />` },
    { label: "For tasks like", wide: true, cell: (row) => html`<${Words} text=${whenOf(row.texts)} most=${160} />` },
    { label: "Utility", num: true, cell: (row) => html`<${Utility} of=${row} />` },
    { label: "Groups", num: true, cell: (row) => count(row.groups) },
    { label: "State", cell: (row) => html`<${State} of=${row} />` },
    { label: "Added at step", num: true, cell: (row) => count(row.step) },
  ];

  const MEANING =
    "Utility: success of the rollouts that received the advice minus success of the other rollouts in their groups, as a moving average. Rollouts receive several pieces of advice at once, so utilities are not independent.";

  const droppedOf = (dropped) => Object.entries(dropped).map(([why, n]) => `${inWords(why)} ${count(n)}`).join(", ");

  const Rows = ({ run, arm, rows, keys, label }) => html`<${Table} label=${label} rows=${rows} columns=${columns()} keys=${keys}
    keyOf=${(row) => `${row.memory} ${row.id}`} href=${(row) => placeOf(run, arm, row.id)} />`;

  /** Number of rows on an arm's page. */
  const FEW = 6;

  /** The section with an arm's advice; nothing if the arm has none. */
  const ArmAdvice = ({ run, arm }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "advice"], {}, { run });
    if (!found.error && !found.data?.rows.length) return null;
    return html`<${Loaded} of=${found}>${({ held, dropped, rows }) => html`
      <${Section} title=${nameOf(rows)} id="advice" note=${`Lessons from finished rollouts, given to some later training rollouts. ${MEANING}`}
        aside=${html`<a href=${link(["runs", run, "arms", arm, "advice"])}>All ${count(rows.length)}</a>`}>
        <p>${count(held)} in the pool${Object.keys(dropped).length > 0 && `; dropped: ${droppedOf(dropped)}`}.</p>
        <${Rows} run=${run} arm=${arm} rows=${rows.slice(0, FEW)} label=${nameOf(rows)} keys=${false} />
      <//>`}<//>`;
  };

  coevo.views.AdviceList = ({ run, arm }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "advice"], {}, { run });
    const name = nameOf(found.data?.rows || []);
    return html`<${Page} title=${`${name} of ${arm}`} crumbs=${coevo.armCrumbs(run, arm)} run=${run} wide
      actions=${html`<a class="button" href=${link(["runs", run, "trajectories"], { arm, advice: "any" })}>Episodes with advice</a>`}>
      <${Loaded} of=${found}>${(data) => data.rows.length === 0
        ? html`<${Empty} title="This arm has no advice."><p>Only methods that give lessons from earlier rollouts to later rollouts have advice.</p><//>`
        : html`
          <${Figures} of=${[["In the pool", count(data.held)], ...Object.entries(data.dropped).map(([why, n]) => [`Dropped: ${inWords(why)}`, count(n)])]} />
          <p class="note">${MEANING}</p>
          <${Rows} run=${run} arm=${arm} rows=${data.rows} label=${name} />
          ${data.left > 0 && html`<p class="note">${count(data.left)} more pieces of advice have a lower utility.</p>`}`}<//>
    <//>`;
  };

  const OverTime = ({ row }) => {
    const series = useMemo(() => [{ label: "utility", bold: true, points: row.steps.map((x, i) => ({ x, y: row.utilities[i] })) }], [row]);
    if (!row.steps.length) return html`<${Empty} title="Not measured yet."><p>Utility is measured in groups in which some rollouts receive the advice and others receive none.</p><//>`;
    return html`<${Chart} kind="lines" title="Utility over time" series=${series} x=${{ label: "learner step" }} y=${{ label: "utility", domain: [-1, 1] }} note=${MEANING} />`;
  };

  const MOST_TOLD = 30;

  /** The stored episodes that received a piece of advice, latest first. */
  const Told = ({ run, arm, id }) => {
    const kinds = coevo.useKinds();
    const filters = { arm, advice: id };
    const found = coevo.useData(["runs", run, "trajectories"], { ...filters, sort: "-step", per_page: MOST_TOLD }, { run });
    coevo.useUntilRead(found);
    return html`<${Loaded} of=${found}>${(page) => html`
      <${Table} label="Episodes with this advice" rows=${page.rows} columns=${coevo.trajectoryColumns(kinds)} keyOf=${(row) => row.id} href=${(row) => link(["runs", run, "trajectories", row.id])}
        empty=${html`<${Empty} title=${page.read < 1 ? "The episodes are still being read." : "No stored episode has this advice."} />`} />
      ${page.total > page.rows.length && html`<p><a href=${link(["runs", run, "trajectories"], filters)}>All ${plural(page.total, "episode")}</a></p>`}`}<//>`;
  };

  const Advice = ({ run, arm, row }) => html`
    ${Object.entries(row.texts).map(([name, text]) => html`<div key=${name}><p class="did-label">${capital(inWords(name))}</p>
      <blockquote class="asked"><${Prose} text=${text} most=${2000} /></blockquote></div>`)}
    <${Figures} of=${[
      ["State", html`<${State} of=${row} />`],
      ["Utility", html`<${Utility} of=${row} />`],
      ["Groups", count(row.groups), "measured on"],
      ["Added at step", count(row.step)],
      ["Written from", inWords(row.source || "–")],
    ]} />
    <p>Origin: ${row.episode ? html`<a href=${link(["runs", run, "trajectories", row.episode])}>an episode</a>` : "an episode that is not stored"} of the task
      ${" "}<a href=${link(["runs", run, "tasks", row.task.id])}><${Words} text=${row.task.instruction || row.task.name || row.task.id} most=${160} /></a></p>
    <${Section} title="Usefulness"><${OverTime} row=${row} /><//>
    <${Section} title="Episodes with this advice" id="told"><${Told} run=${run} arm=${arm} id=${row.id} /><//>`;

  coevo.views.Advice = ({ run, arm, id }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "advice"], {}, { run });
    const name = nameOf(found.data?.rows || []);
    const list = link(["runs", run, "arms", arm, "advice"]);
    const row = found.data?.rows.find((one) => one.id === id);
    return html`<${Page} title=${`Advice ${coevo.brief(id, 8)}`} crumbs=${[...coevo.armCrumbs(run, arm), [name, list]]} run=${run}>
      <${Loaded} of=${found}>${() => row
        ? html`<${Advice} run=${run} arm=${arm} row=${row} />`
        : html`<${Empty} title="This advice is not in the list."><a href=${list}>${name} of ${arm}</a><//>`}<//>
    <//>`;
  };

  /** The advice that an episode received, with its texts. */
  const ToldAdvice = ({ episode }) => {
    const { advice } = episode;
    if (!advice?.length) return null;
    return html`<details class="more told" open=${advice.length < 3}><summary>Received ${plural(advice.length, "piece", "pieces")} of advice</summary>
      <ul class="says">${advice.map((one) => html`<li key=${one.id}><a href=${placeOf(episode.run, episode.arm, one.id)}><${Words} text=${textOf(one.texts)} most=${300} /></a>
        ${whenOf(one.texts) && html` <span class="soft">for tasks like: <${Words} text=${whenOf(one.texts)} most=${200} /></span>`}</li>`)}</ul></details>`;
  };

  coevo.route("runs/:run/arms/:arm/advice", coevo.views.AdviceList);
  coevo.route("runs/:run/arms/:arm/advice/:id", coevo.views.Advice);
  Object.assign(coevo, { ArmAdvice, ToldAdvice });
})();
