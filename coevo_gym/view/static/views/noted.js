// Notes: the table of an arm's notes, interfaces and advice, and the notes about one episode.
"use strict";

(() => {
  const { html, link, useMemo, Words, Section, Loaded, Table, Tag, Facts, Chart, count, percent, signed, given, plural } = coevo;

  const inWords = (name) => name.replaceAll("_", " ");
  const Label = ({ of }) => html`<${Tag} tone=${of.tone}><${Words} text=${inWords(of.label)} most=${34} /><//>`;

  // ---- an arm's notes -----------------------------------------------------------------------

  /** Number of texts of a row that are shown at first. */
  const MOST_OPEN = 2;

  const Lines = ({ lines, most = MOST_OPEN }) => {
    if (!lines.length) return html`<span class="soft">Adds nothing to the env's text.</span>`;
    const list = (some) => html`<ul class="says">${some.map((line, i) => html`<li key=${i}><${Words} text=${line} most=${600} /></li>`)}</ul>`;
    const folded = lines.slice(most);
    return html`<div>${list(lines.slice(0, most))}
      ${folded.length > 0 && html`<details class="more"><summary>${plural(folded.length, "more line")}</summary>${list(folded)}</details>`}</div>`;
  };

  const isAdvice = (row) => row.kind !== "interface" && row.says.length > 0;

  /** What a row is about: a label, an interface with its lines, or a piece of advice. */
  const About = ({ of }) => {
    const state = isAdvice(of) && html`<${Tag} tone=${of.tone}>${of.why ? `dropped: ${inWords(of.why)}` : "in the pool"}<//>`;
    return html`${state || (of.label ? html`<${Label} of=${of} />` : html`<span class="soft">numbers</span>`)}
      ${(of.says.length > 0 || of.kind === "interface") && html`<${Lines} lines=${of.says} />`}`;
  };

  const Similarity = ({ of }) => html`${percent(of.likeness)}${given(of.floor) && html` <small class="soft">no change ${percent(of.floor)}</small>`}`;

  /** The columns of the table; those without a value in any row are left out. */
  const columnsOf = (run, arm, rows) => [
    { label: "From", cell: (row) => inWords(row.kind) },
    { label: "Note", wide: true, cell: (row) => html`<${About} of=${row} />` },
    { label: "Number", num: true, cell: (row) => count(row.n) },
    { label: "Steps", num: true, cell: ({ first, last }) => (first === last ? count(first) : html`${count(first)}–${count(last)}`) },
    rows.some(({ early, late }) => given(early) || given(late)) && { label: "Early share", num: true, cell: (row) => percent(row.early) },
    rows.some(({ early, late }) => given(early) || given(late)) && { label: "Late share", num: true, cell: (row) => percent(row.late) },
    rows.some(({ value }) => given(value)) && { label: "Value", num: true, cell: (row) => (given(row.value) ? signed(row.value) : "") },
    rows.some(({ likeness }) => given(likeness)) && { label: "Prediction", num: true, cell: (row) => given(row.likeness) && html`<${Similarity} of=${row} />` },
    { label: "Tasks", num: true, cell: (row) => count(row.n_tasks) },
    { label: "Episodes", cell: (row) => html`<span class="arm-list">${row.episodes.map(
      ({ id, step }) => html`<a key=${id} href=${link(["runs", run, "trajectories", id])} title=${`Episode ${id}`}>step ${count(step)}</a>`,
    )}${isAdvice(row) && html`<a href=${link(["runs", run, "trajectories"], { arm, advice: row.label })}>all</a>`}</span>` },
  ].filter(Boolean); // prettier-ignore

  const MEANING =
    "Labels and numbers that studies wrote about training episodes, versions of the interface, and advice in memories. Shares are those of a label among the labels of its study, in the first and in the second half of the steps. The value of advice is the success of the rollouts that received it minus the success of the others in their groups.";

  /** The table of notes about an arm's episodes; nothing if there are none. */
  const ArmNotes = ({ run, arm }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "notes"], {}, { run });
    if (!found.error && !found.data?.rows.length) return null;
    return html`<${Loaded} of=${found}>${({ rows, left }) => html`
      <${Section} title="Notes" id="notes" note=${MEANING}>
        <${Table} label="Notes" rows=${rows} columns=${columnsOf(run, arm, rows)} keyOf=${(row) => `${row.kind} ${row.label}`} keys=${false} />
        ${left > 0 && html`<p class="note">${plural(left, "more row")}.</p>`}<//>`}<//>`;
  };

  // ---- one episode --------------------------------------------------------------------------

  const whereOf = (note, hrefOfStep) => {
    if (note.turn) return html`Turn ${count(note.turn)} of ${count(note.turns)}`;
    if (note.step) return html`<a href=${hrefOfStep(note.step)}>Step ${count(note.step)}</a>`;
    return "Whole episode";
  };

  // ---- labels of all steps ------------------------------------------------------------------

  /** The origin of the labels of an episode's steps, by the label of the study's note. */
  const FOUND = {
    examined: "Found by replaying the episode without single steps.",
    left_out: "Not labelled: the episode was skipped to limit the replays of this learner step.",
    unlike: "Not labelled: a replay of all actions had a different score.",
    fault: "Not labelled: a replay failed on an infrastructure error.",
    no_answer: "Not labelled: the model gave no usable answer.",
  };
  const VERDICTS = { 1: ["good", "✓", "good"], "-1": ["bad", "✗", "bad"], 0: ["no label", "·", ""] };
  const verdictOf = (label) => VERDICTS[label] || VERDICTS[0];

  /** The notes with a label for each step of an episode. */
  const labelled = (episode) => episode.notes.filter((note) => note.labels?.length);

  /** A study's labels of all steps as marks in a row, with the origin of the labels. */
  const AllLabels = ({ note, hrefOfStep }) => {
    const n = (label) => note.labels.filter((one) => one === label).length;
    return html`<div class="card" key=${note.kind}><h3><${Words} text=${inWords(note.kind)} most=${60} /></h3>
      <p><${Label} of=${note} /> <span class="soft">${note.source === "model" && note.label === "examined" ? "Found by a model." : FOUND[note.label]}</span></p>
      <p>${plural(n(1), "good step")}, ${count(n(-1))} bad, ${count(n(0))} without a label</p>
      <nav class="siblings" aria-label=${`Labels of the steps: ${inWords(note.kind)}`}>${note.labels.map((label, i) => {
        const [words, mark, tone] = verdictOf(label);
        return html`<a key=${i} class=${coevo.cls("sibling", tone || "plain")} href=${hrefOfStep(i + 1)} aria-label=${`Step ${i + 1}: ${words}`} title=${`Step ${i + 1}: ${words}`}><span aria-hidden="true">${mark}</span></a>`;
      })}</nav></div>`;
  };

  /** A step's labels as marks for a list of steps; null if no study labels all steps. */
  const StepMarks = ({ episode, number }) => {
    const notes = labelled(episode);
    return notes.length > 0 && html`<span class="step-marks">${notes.map((note, i) => {
      const [words, mark, tone] = verdictOf(note.labels[number - 1]);
      return html`<span key=${i} class=${coevo.cls("outcome", tone)} title=${`${inWords(note.kind)}: ${words}`}>${mark}</span>`;
    })}</span>`;
  };

  /** The notes about an episode, grouped by kind. */
  const EpisodeNotes = ({ episode, hrefOfStep }) => {
    if (!episode.notes.length) return null;
    const whole = labelled(episode);
    const shown = new Set(whole.map(({ kind }) => kind));
    const kinds = [...new Set(episode.notes.map(({ kind }) => kind))].filter((kind) => !shown.has(kind));
    return html`<${Section} title="Notes" id="noted" note="Notes that studies wrote about this episode.">
      ${whole.length > 0 && html`<div class="cards">${whole.map((note) => html`<${AllLabels} note=${note} hrefOfStep=${hrefOfStep} />`)}</div>`}
      ${kinds.map((kind) => html`<${LikenessBySteps} key=${kind} kind=${kind} notes=${episode.notes.filter((note) => note.kind === kind)} />`)}
      <div class="cards">${kinds.map(
        (kind) => html`<div class="card" key=${kind}><h3><${Words} text=${inWords(kind)} most=${60} /></h3>
          <dl class="facts">${episode.notes.filter((note) => note.kind === kind).map(
            (note, i) => html`<div key=${i}><dt>${whereOf(note, hrefOfStep)}</dt>
              <dd>${note.label && html`<${Label} of=${note} /> `}${(note.value !== 0 || !note.label) && html`<span class="soft num" title=${`Source: ${note.source}`}>value ${given(note.value) ? coevo.decimal(note.value) : ""}</span>`}
                ${Object.keys(note.says || {}).length > 0 && html`<${Facts} value=${note.says} label=${`Texts of ${inWords(kind)}`} />`}</dd></div>`,
          )}</dl></div>`,
      )}</div><//>`;
  };

  /** Similarity of the expected and the observed text in each step of an episode. */
  const LikenessBySteps = ({ kind, notes }) => {
    const series = useMemo(() => {
      const about = notes.filter((note) => note.step && (note.expected?.length || given(note.floor)));
      const most = Math.max(0, ...about.map((note) => note.expected?.length || 0));
      const after = (h) => about.map((note) => ({ x: note.step, y: note.expected?.[h]?.likeness ?? null }));
      const ahead = (h) => (h ? `${h + 1} steps later` : "next observation");
      return [
        ...Array.from({ length: most }, (_, h) => ({ label: ahead(h), points: after(h), bold: h === 0 })),
        { label: "prediction of no change", points: about.map((note) => ({ x: note.step, y: note.floor ?? null })) },
      ];
    }, [notes]);
    const x = useMemo(() => ({ label: "episode step" }), []);
    const y = useMemo(() => ({ label: "similarity", format: "percent", domain: [0, 1] }), []);
    if (!series[0].points.length || series.length < 2) return null;
    return html`<${Chart} kind="lines" title=${`Expected and observed: ${inWords(kind)}`} series=${series} x=${x} y=${y} height=${200} />`;
  };

  /** The env's text after the n-th step of an episode, or null after its end. */
  const cameOf = (episode, number) => {
    const next = episode.steps[number];
    if (next) return next.raw ?? next.observation;
    return number === episode.steps.length ? episode.last_observation : null;
  };

  /** A similarity as a bar and a number, with a mark for a prediction of no change. */
  const Likeness = ({ of, floor }) => html`<span class="likeness"><span class="likeness-bar" aria-hidden="true"><i style=${{ width: `${100 * of}%` }}></i>${given(floor) && html`<b style=${{ left: `${100 * floor}%` }}></b>`}</span>
    <span class="num">${percent(of)} similar</span>${given(floor) && html`<span class="soft num">${percent(floor)} for a prediction of no change</span>`}</span>`;

  /** The expected text after a step, beside the observed one. */
  const StepExpected = ({ episode, step }) => {
    const found = episode.notes.filter((note) => note.step === step.number && note.expected?.length);
    return found.map((note, i) => html`<div class="expected" key=${i}>
      ${note.expected.map(({ text, likeness }, h) => {
        const came = cameOf(episode, step.number + h);
        return html`<div class="expected-row" key=${h}>
          <p class="expected-head"><b>Expected ${h ? `${h + 1} steps later` : "next"}</b> <span class="soft">${inWords(note.kind)}, source: ${note.source}</span>
            ${given(likeness) && html`<${Likeness} of=${likeness} floor=${h ? null : note.floor} />`}</p>
          ${text === null
            ? html`<p class="soft">Identical to the observed text.</p>`
            : html`<div class="expected-pair"><div><p class="did-label">Expected</p>${text ? html`<${coevo.Prose} class="code" text=${text} most=${400} />` : html`<p class="soft">Nothing.</p>`}</div>
              <div><p class="did-label">Observed</p>${came === null ? html`<p class="soft">The episode had ended.</p>` : html`<${coevo.Prose} class="code" text=${came} most=${400} />`}</div></div>`}
        </div>`;
      })}</div>`);
  };

  const MOST_OPEN_ADVICE = 3;

  /** The advice that an episode received, with its texts. */
  const ToldAdvice = ({ episode }) => {
    const { advice } = episode;
    if (!advice?.length) return null;
    return html`<details class="more told" open=${advice.length < MOST_OPEN_ADVICE}><summary>Received ${plural(advice.length, "piece", "pieces")} of advice</summary>
      <ul class="says">${advice.map(({ id, texts }) => html`<li key=${id}><${Words} text=${Object.values(texts).join(" ")} most=${600} />
        ${" "}<a href=${link(["runs", episode.run, "trajectories"], { arm: episode.arm, advice: id })}>All episodes with it</a></li>`)}</ul></details>`;
  };

  /** The cues, the advice and the interface of an episode. */
  const ShownWith = ({ episode }) => {
    const { interface: version, shown_by: lines, cue_ids: cues } = episode;
    if (!version && !cues.length) return null;
    const known = new Set((episode.advice || []).map(({ id }) => id));
    const others = cues.filter((id) => !id.split(/[:,]/).some((one) => known.has(one)));
    const told = html`${others.length > 0 && html`<p>Cues: ${others.map((id) => html`<${Tag} key=${id}><${Words} text=${id} most=${34} /><//> `)}</p>`}<${ToldAdvice} episode=${episode} />`;
    if (!version) return html`<div class="shown-with">${told}</div>`;
    return html`<div class="shown-with">${told}
      <details class="more"><summary>Interface <${Words} text=${version} most=${34} /></summary>
        ${lines ? html`<${Lines} lines=${lines} most=${Infinity} />` : html`<p class="soft">The interface's text is not stored.</p>`}
        <p><a href=${link(["runs", episode.run, "arms", episode.arm])}>All interfaces of ${episode.arm}</a></p></details></div>`;
  };

  /** The labels of one step of an episode. */
  const StepLabels = ({ episode, step }) => {
    const whole = labelled(episode);
    const shown = new Set(whole.map(({ kind }) => kind));
    const others = episode.notes.filter((note) => note.step === step.number && note.label && !shown.has(note.kind));
    return html`${whole.map((note, i) => {
      const [words, mark, tone] = verdictOf(note.labels[step.number - 1]);
      return html`<${Tag} key=${i} tone=${tone} title=${`${inWords(note.kind)}: ${FOUND[note.label] || inWords(note.label)}`}>${mark} ${words}<//>`;
    })}${others.map((note, i) => html`<${Label} key=${i} of=${note} />`)}`;
  };

  Object.assign(coevo, { ArmNotes, EpisodeNotes, ShownWith, StepExpected, StepLabels, StepMarks });
})();
