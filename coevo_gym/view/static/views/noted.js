// Notes of studies: labels of an arm's episodes and numbers of their steps over time, the interfaces
// of these episodes, and the notes about one episode.
"use strict";

(() => {
  const { html, link, useMemo, Words, Section, Loaded, Table, Tag, Facts, Chart, count, percent, given, plural } = coevo;

  /** Maximum number of labels with their own bar; all other labels share one. */
  const MOST_DRAWN = 8;
  /** Number of lines of an interface that are shown at first. */
  const MOST_OPEN = 6;

  const inWords = (name) => name.replaceAll("_", " ");
  const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);

  // ---- an arm's labels ----------------------------------------------------------------------

  /** The labels to draw: those that name failures, or all labels if none of them does. */
  const drawnOf = (of) => {
    const failures = of.labels.filter(({ failure }) => failure);
    return failures.length ? failures : of.labels;
  };

  /** The share of each drawn label in each interval of steps. */
  const columnsOf = (run, arm, of) => {
    const shown = drawnOf(of);
    const drawn = shown.slice(0, MOST_DRAWN);
    const others = shown.slice(MOST_DRAWN);
    const fills = drawn.map(({ label }, i) => ({ label: inWords(label), style: i }));
    const more = others.length > 0 || of.left > 0;
    if (more) fills.push({ label: "other labels", colour: "var(--chart-soft)", hatch: 0 });
    const columns = of.first.map((from, i) => {
      const to = of.last[i];
      const known = sum(of.labels.map(({ counts }) => counts[i]));
      const counts = drawn.map((row) => row.counts[i]);
      if (more) counts.push(sum(others.map((row) => row.counts[i])) + of.total[i] - known);
      return {
        label: from === to ? `${from}` : `${from}–${to}`,
        values: counts.map((n) => (of.total[i] ? n / of.total[i] : 0)),
        href: link(["runs", run, "trajectories"], { arm, step_from: from, step_to: to }),
      };
    });
    return { fills, columns };
  };

  const LABEL_COLUMNS = (run, of) => {
    const all = sum(of.total);
    const parts = of.total.map((n, i) => i).filter((i) => of.total[i]);
    const share = (i) => ({ counts }) => percent(counts[i] / of.total[i]);
    return [
      { label: "Label", cell: (row) => html`<${Label} of=${row} />` },
      { label: "Notes", num: true, cell: (row) => count(row.total) },
      { label: "Share", num: true, cell: (row) => percent(row.total / all) },
      { label: "First steps", num: true, cell: share(parts[0]) },
      { label: "Last steps", num: true, cell: share(parts[parts.length - 1]) },
      ...of.labels.some((row) => row.thirds) ? ["Early turns", "Middle", "Late"].map((label, i) => ({
        label, num: true, cell: ({ thirds }) => percent(thirds ? thirds[i] / sum(thirds) : null),
      })) : [],
      of.labels.some((row) => row.n_tasks > 0) && { label: "Tasks", cell: (row) => row.n_tasks > 0 && html`<${LabelTasks} run=${run} of=${row} />` },
      { label: "Latest episodes", cell: ({ latest }) => html`<span class="arm-list">${latest.map(
        ({ id, step }) => html`<a key=${id} href=${link(["runs", run, "trajectories", id])} title=${`Episode ${id}`}>step ${count(step)}</a>`,
      )}</span>` },
    ].filter(Boolean); // prettier-ignore
  };

  /** The number of tasks with a label; when unfolded, some of them by their latest note. */
  const LabelTasks = ({ run, of }) => html`<details class="label-tasks"><summary>${plural(of.n_tasks, "task")}</summary>
    <ul class="plain">${of.tasks.map(({ task, n, step }) => html`<li key=${task.id}><a href=${link(["runs", run, "tasks", task.id])}><${Words} text=${task.instruction || task.name || task.id} most=${110} /></a>
      <span class="soft">${plural(n, "note")}, latest at step ${count(step)}</span></li>`)}</ul>
    ${of.n_tasks > of.tasks.length && html`<p class="note">${plural(of.n_tasks - of.tasks.length, "more task")}.</p>`}</details>`;

  const Label = ({ of }) => html`<${Tag} tone=${of.tone}><${Words} text=${inWords(of.label)} most=${34} /><//>`;

  const Labels = ({ run, arm, of }) => {
    const { fills, columns } = useMemo(() => columnsOf(run, arm, of), [run, arm, of]);
    const x = useMemo(() => ({ label: "learner steps" }), []);
    const y = useMemo(() => ({ label: "share of notes", format: "percent" }), []);
    const failures = of.labels.some(({ failure }) => failure);
    return html`
      <${Chart} kind="columns" stacked title=${`${failures ? "Failures" : "Labels"}: ${inWords(of.kind)}`} columns=${columns} fills=${fills} x=${x} y=${y}
        note=${`Share of each ${failures ? "failure" : "label"} among the notes with a label. Click a bar to see the episodes in its steps.`}
        none="No notes yet." />
      <${Table} label=${`Labels of ${inWords(of.kind)}`} rows=${of.labels} columns=${LABEL_COLUMNS(run, of)} keyOf=${(row) => row.label} keys=${false} />
      ${of.left > 0 && html`<p class="note">${plural(of.left, "less frequent label")} not listed.</p>`}`;
  };

  // ---- numbers of its notes -----------------------------------------------------------------

  /** Means over the notes of each step: similarity of expected and observed texts, and values. */
  const Numbers = ({ of }) => {
    const [alike, values] = useMemo(() => {
      const points = (numbers) => of.step.map((x, i) => ({ x, y: numbers[i] }));
      const gain = of.likeness.map((y, i) => (given(y) && given(of.floor[i]) ? y - of.floor[i] : null));
      const lines = [
        { label: "expected and observed", points: points(of.likeness), bold: true },
        { label: "before and after the step", points: points(of.floor) },
        { label: "difference", points: points(gain) },
      ];
      return [lines.filter((one) => one.points.some(({ y }) => given(y))), [{ label: "mean value", points: points(of.value), bold: true }]];
    }, [of]);
    const x = useMemo(() => ({ label: "learner step" }), []);
    const share = useMemo(() => ({ label: "similarity", format: "percent" }), []);
    const value = useMemo(() => ({ label: "mean value" }), []);
    const name = inWords(of.kind);
    return html`<div class="chart-pair">
      ${of.likeness.length > 0 && html`<${Chart} kind="lines" title=${`Similarity of observations: ${name}`} series=${alike} x=${x} y=${share}
        note="Similarity of the next observation to the expected one, and to the observation before the step. A prediction of no change would score the second similarity." />`}
      ${of.value.length > 0 && html`<${Chart} kind="lines" title=${`Value of notes: ${name}`} series=${values} x=${x} y=${value} />`}</div>`;
  };

  // ---- its interfaces -----------------------------------------------------------------------

  /** The lines that an interface adds; lines after the first `most` are folded. */
  const Lines = ({ of, most = MOST_OPEN }) => {
    if (!of.says.length) return html`<span class="soft">Adds nothing to the env's text.</span>`;
    const list = (lines) => html`<ul class="says">${lines.map((line, i) => html`<li key=${i}><${Words} text=${line} most=${600} /></li>`)}</ul>`;
    const folded = of.says.slice(most);
    const left = of.left > 0 && html`<p class="note">${plural(of.left, "more line")}.</p>`;
    return html`<div>${list(of.says.slice(0, most))}
      ${folded.length > 0 ? html`<details class="more"><summary>${plural(folded.length, "more line")}</summary>${list(folded)}${left}</details>` : left}</div>`;
  };

  const INTERFACE_COLUMNS = (run) => [
    { label: "Version", cell: (row) => html`<code><${Words} text=${row.name || row.version} most=${20} /></code>` },
    { label: "From step", num: true, cell: ({ step, again }) => html`${count(step)}${again.length > 0 && html`<small class="soft" title=${`again from steps ${again.map(count).join(", ")}`}>, again ${again.slice(0, 3).map(count).join(", ")}${again.length > 3 && ", …"}</small>`}` },
    { label: "Env steps", num: true, cell: (row) => count(row.env_steps) },
    { label: "Added text", wide: true, cell: (row) => html`<${Lines} of=${row} />` },
    { label: "First episode", cell: ({ episode }) => episode && html`<a href=${link(["runs", run, "trajectories", episode])}>open</a>` },
  ]; // prettier-ignore

  /** The notes about an arm's episodes; nothing if there are none. */
  const ArmNotes = ({ run, arm }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "notes"], {}, { run });
    if (!found.error && !["kinds", "numbers", "interfaces"].some((part) => found.data?.[part]?.length)) return null;
    return html`<${Loaded} of=${found}>${({ kinds, numbers, interfaces, left }) => html`
      ${kinds.length > 0 && html`<${Section} title="Labels" id="labels" note="Labels that studies assigned to training episodes and their steps.">
        ${kinds.map((of) => html`<${Labels} key=${of.kind} run=${run} arm=${arm} of=${of} />`)}<//>`}
      ${numbers?.length > 0 && html`<${Section} title="Numbers in notes" id="numbers" note="Mean values of the notes about steps of training episodes.">
        ${numbers.map((of) => html`<${Numbers} key=${of.kind} of=${of} />`)}<//>`}
      ${interfaces.length > 0 && html`<${Section} title="Interfaces" id="interfaces" note="Each version with its first step and the text that it adds to the env's own text.">
        <${Table} label="Interfaces" rows=${interfaces} columns=${INTERFACE_COLUMNS(run)} keyOf=${(row) => row.version} keys=${false} />
        ${left > 0 && html`<p class="note">Not shown: ${plural(left, "interface")} between these.</p>`}<//>`}`}<//>`;
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

  /** The cues, the advice and the interface of an episode. */
  const ShownWith = ({ episode }) => {
    const { interface: version, shown_by: by, cue_ids: cues } = episode;
    if (!version && !cues.length) return null;
    const name = by?.name || version;
    const known = new Set((episode.advice || []).map(({ id }) => id));
    const others = cues.filter((id) => !id.split(/[:,]/).some((one) => known.has(one)));
    const told = html`${others.length > 0 && html`<p>Cues: ${others.map((id) => html`<${Tag} key=${id}><${Words} text=${id} most=${34} /><//> `)}</p>`}<${coevo.ToldAdvice} episode=${episode} />`;
    if (!version) return html`<div class="shown-with">${told}</div>`;
    return html`<div class="shown-with">${told}
      <details class="more"><summary>Interface <${Words} text=${name} most=${34} /></summary>
        ${by ? html`<${Lines} of=${by} most=${Infinity} />` : html`<p class="soft">The interface's text is not stored.</p>`}
        ${by && html`<p><a href=${link(["runs", episode.run, "arms", episode.arm])}>All interfaces of ${episode.arm}</a></p>`}</details></div>`;
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
