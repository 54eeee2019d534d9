// What studies noted: the labels of an arm's episodes and the numbers of their steps over time, the
// interfaces that these were shown through, and what was noted about one episode.
"use strict";

(() => {
  const { html, link, useMemo, Words, Section, Loaded, Table, Tag, Facts, Chart, count, percent, given, plural } = coevo;

  /** Labels that bars tell apart; all other failures are one more bar. */
  const MOST_DRAWN = 8;
  /** Lines of an interface that are shown before the others are folded. */
  const MOST_OPEN = 6;

  const inWords = (name) => name.replaceAll("_", " ");
  const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);

  // ---- an arm's labels ----------------------------------------------------------------------

  /** Of the notes in each part of the steps, the share of each label that tells of a failure. */
  const columnsOf = (run, arm, of) => {
    const failures = of.labels.filter(({ failure }) => failure);
    const drawn = failures.slice(0, MOST_DRAWN);
    const others = failures.slice(MOST_DRAWN);
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
      { label: "At first", num: true, cell: share(parts[0]) },
      { label: "Lately", num: true, cell: share(parts[parts.length - 1]) },
      ...of.labels.some((row) => row.thirds) ? ["Early turns", "Middle", "Late"].map((label, i) => ({
        label, num: true, cell: ({ thirds }) => percent(thirds ? thirds[i] / sum(thirds) : null),
      })) : [],
      of.labels.some((row) => row.n_tasks > 0) && { label: "Tasks", cell: (row) => row.n_tasks > 0 && html`<${LabelTasks} run=${run} of=${row} />` },
      { label: "Latest stored", cell: ({ latest }) => html`<span class="arm-list">${latest.map(
        ({ id, step }) => html`<a key=${id} href=${link(["runs", run, "trajectories", id])} title=${`Episode ${id}`}>step ${count(step)}</a>`,
      )}</span>` },
    ].filter(Boolean); // prettier-ignore
  };

  /** The tasks of a label's notes: how many, and when unfolded some of them by their latest note. */
  const LabelTasks = ({ run, of }) => html`<details class="label-tasks"><summary>${plural(of.n_tasks, "task")}</summary>
    <ul class="plain">${of.tasks.map(({ task, n, step }) => html`<li key=${task.id}><a href=${link(["runs", run, "tasks", task.id])}><${Words} text=${task.instruction || task.name || task.id} most=${110} /></a>
      <span class="soft">${plural(n, "note")}, latest at step ${count(step)}</span></li>`)}</ul>
    ${of.n_tasks > of.tasks.length && html`<p class="note">${plural(of.n_tasks - of.tasks.length, "task")} more.</p>`}</details>`;

  const Label = ({ of }) => html`<${Tag} tone=${of.failure ? "bad" : ""}><${Words} text=${inWords(of.label)} most=${34} /><//>`;

  const Labels = ({ run, arm, of }) => {
    const { fills, columns } = useMemo(() => columnsOf(run, arm, of), [run, arm, of]);
    const x = useMemo(() => ({ label: "steps of the learner" }), []);
    const y = useMemo(() => ({ label: "share of notes", format: "percent" }), []);
    return html`
      <${Chart} kind="columns" stacked title=${`Failures by label: ${inWords(of.kind)}`} columns=${columns} fills=${fills} x=${x} y=${y}
        note="Of the notes that carry a label, how many carry each that tells of a failure. A bar leads to the episodes of its steps."
        none="No failure was noted." />
      <${Table} label=${`Labels of ${inWords(of.kind)}`} rows=${of.labels} columns=${LABEL_COLUMNS(run, of)} keyOf=${(row) => row.label} keys=${false} />
      ${of.left > 0 && html`<p class="note">${plural(of.left, "label")} more, each rarer than these.</p>`}`;
  };

  // ---- numbers of its notes -----------------------------------------------------------------

  /** Means over the notes of each step: how alike what was expected is to what came, and values. */
  const Numbers = ({ of }) => {
    const [alike, values] = useMemo(() => {
      const points = (numbers) => of.step.map((x, i) => ({ x, y: numbers[i] }));
      const gain = of.likeness.map((y, i) => (given(y) && given(of.floor[i]) ? y - of.floor[i] : null));
      const lines = [
        { label: "expected next, to what came", points: points(of.likeness), bold: true },
        { label: "before the step, to what came", points: points(of.floor) },
        { label: "difference", points: points(gain) },
      ];
      return [lines.filter((one) => one.points.some(({ y }) => given(y))), [{ label: "mean value", points: points(of.value), bold: true }]];
    }, [of]);
    const x = useMemo(() => ({ label: "step of the learner" }), []);
    const share = useMemo(() => ({ label: "likeness", format: "percent" }), []);
    const value = useMemo(() => ({ label: "mean value" }), []);
    const name = inWords(of.kind);
    return html`<div class="chart-pair">
      ${of.likeness.length > 0 && html`<${Chart} kind="lines" title=${`Likeness of observations: ${name}`} series=${alike} x=${x} y=${share}
        note="How alike the next observation is to what was expected, and to the observation before the step. Expecting no change would earn the second." />`}
      ${of.value.length > 0 && html`<${Chart} kind="lines" title=${`Value of notes: ${name}`} series=${values} x=${x} y=${value} />`}</div>`;
  };

  // ---- its interfaces -----------------------------------------------------------------------

  /** What an interface says; after `most` lines the others are folded. */
  const Lines = ({ of, most = MOST_OPEN }) => {
    if (!of.says.length) return html`<span class="soft">Nothing more than the env.</span>`;
    const list = (lines) => html`<ul class="says">${lines.map((line, i) => html`<li key=${i}><${Words} text=${line} most=${600} /></li>`)}</ul>`;
    const folded = of.says.slice(most);
    const left = of.left > 0 && html`<p class="note">${plural(of.left, "line")} more.</p>`;
    return html`<div>${list(of.says.slice(0, most))}
      ${folded.length > 0 ? html`<details class="more"><summary>${plural(folded.length, "line")} more</summary>${list(folded)}${left}</details>` : left}</div>`;
  };

  const INTERFACE_COLUMNS = (run) => [
    { label: "Version", cell: (row) => html`<code><${Words} text=${row.name || row.version} most=${20} /></code>` },
    { label: "From step", num: true, cell: ({ step, again }) => html`${count(step)}${again.length > 0 && html`<small class="soft" title=${`again from steps ${again.map(count).join(", ")}`}>, again ${again.slice(0, 3).map(count).join(", ")}${again.length > 3 && ", …"}</small>`}` },
    { label: "Env steps", num: true, cell: (row) => count(row.env_steps) },
    { label: "What it says", wide: true, cell: (row) => html`<${Lines} of=${row} />` },
    { label: "First shown in", cell: ({ episode }) => episode && html`<a href=${link(["runs", run, "trajectories", episode])}>an episode</a>` },
  ]; // prettier-ignore

  /** What was noted about an arm's episodes; nothing where nothing was. */
  const ArmNotes = ({ run, arm }) => {
    const found = coevo.useData(["runs", run, "arms", arm, "notes"], {}, { run });
    if (!found.error && !["kinds", "numbers", "interfaces"].some((part) => found.data?.[part]?.length)) return null;
    return html`<${Loaded} of=${found}>${({ kinds, numbers, interfaces, left }) => html`
      ${kinds.length > 0 && html`<${Section} title="What went wrong" id="labels" note="What studies noted about its episodes of training, by label.">
        ${kinds.map((of) => html`<${Labels} key=${of.kind} run=${run} arm=${arm} of=${of} />`)}<//>`}
      ${numbers?.length > 0 && html`<${Section} title="What was noted about steps" id="numbers" note="Means over the notes about its steps of training episodes.">
        ${numbers.map((of) => html`<${Numbers} key=${of.kind} of=${of} />`)}<//>`}
      ${interfaces.length > 0 && html`<${Section} title="What the interface said" id="interfaces" note="Each interface with the step from which it was shown, and what it adds to the env's own text.">
        <${Table} label="Interfaces" rows=${interfaces} columns=${INTERFACE_COLUMNS(run)} keyOf=${(row) => row.version} keys=${false} />
        ${left > 0 && html`<p class="note">${plural(left, "interface")} between these left out.</p>`}<//>`}`}<//>`;
  };

  // ---- one episode --------------------------------------------------------------------------

  const whereOf = (note, hrefOfStep) => {
    if (note.turn) return html`Turn ${count(note.turn)} of ${count(note.turns)}`;
    if (note.step) return html`<a href=${hrefOfStep(note.step)}>Step ${count(note.step)}</a>`;
    return "The whole episode";
  };

  /** What was noted about an episode, kind by kind. */
  const EpisodeNotes = ({ episode, hrefOfStep }) => {
    if (!episode.notes.length) return null;
    const kinds = [...new Set(episode.notes.map(({ kind }) => kind))];
    return html`<${Section} title="What was noted" id="noted" note="What studies of this episode found.">
      ${kinds.map((kind) => html`<${LikenessBySteps} key=${kind} kind=${kind} notes=${episode.notes.filter((note) => note.kind === kind)} />`)}
      <div class="cards">${kinds.map(
        (kind) => html`<div class="card" key=${kind}><h3><${Words} text=${inWords(kind)} most=${60} /></h3>
          <dl class="facts">${episode.notes.filter((note) => note.kind === kind).map(
            (note, i) => html`<div key=${i}><dt>${whereOf(note, hrefOfStep)}</dt>
              <dd>${note.label && html`<${Label} of=${note} /> `}${(note.value !== 0 || !note.label) && html`<span class="soft num" title=${`found by a ${note.source}`}>value ${given(note.value) ? coevo.decimal(note.value) : ""}</span>`}
                ${Object.keys(note.says || {}).length > 0 && html`<${Facts} value=${note.says} label=${`What ${inWords(kind)} says`} />`}</dd></div>`,
          )}</dl></div>`,
      )}</div><//>`;
  };

  /** How alike what was expected in each step of an episode is to what came. */
  const LikenessBySteps = ({ kind, notes }) => {
    const series = useMemo(() => {
      const about = notes.filter((note) => note.step && (note.expected?.length || given(note.floor)));
      const most = Math.max(0, ...about.map((note) => note.expected?.length || 0));
      const after = (h) => about.map((note) => ({ x: note.step, y: note.expected?.[h]?.likeness ?? null }));
      const ahead = (h) => (h ? `${h + 1} steps later` : "next observation");
      return [
        ...Array.from({ length: most }, (_, h) => ({ label: ahead(h), points: after(h), bold: h === 0 })),
        { label: "if nothing had changed", points: about.map((note) => ({ x: note.step, y: note.floor ?? null })) },
      ];
    }, [notes]);
    const x = useMemo(() => ({ label: "step of the episode" }), []);
    const y = useMemo(() => ({ label: "likeness", format: "percent", domain: [0, 1] }), []);
    if (!series[0].points.length || series.length < 2) return null;
    return html`<${Chart} kind="lines" title=${`Expected and observed: ${inWords(kind)}`} series=${series} x=${x} y=${y} height=${200} />`;
  };

  /** What came of the n-th step of an episode, as the env said it; null past its end. */
  const cameOf = (episode, number) => {
    const next = episode.steps[number];
    if (next) return next.raw ?? next.observation;
    return number === episode.steps.length ? episode.last_observation : null;
  };

  /** A likeness as a bar and a number, with a mark where doing nothing would have been. */
  const Likeness = ({ of, floor }) => html`<span class="likeness"><span class="likeness-bar" aria-hidden="true"><i style=${{ width: `${100 * of}%` }}></i>${given(floor) && html`<b style=${{ left: `${100 * floor}%` }}></b>`}</span>
    <span class="num">${percent(of)} alike</span>${given(floor) && html`<span class="soft num">${percent(floor)} if nothing had changed</span>`}</span>`;

  /** What was expected after a step, beside what came. */
  const StepExpected = ({ episode, step }) => {
    const found = episode.notes.filter((note) => note.step === step.number && note.expected?.length);
    return found.map((note, i) => html`<div class="expected" key=${i}>
      ${note.expected.map(({ text, likeness }, h) => {
        const came = cameOf(episode, step.number + h);
        return html`<div class="expected-row" key=${h}>
          <p class="expected-head"><b>Expected ${h ? `${h + 1} steps later` : "next"}</b> <span class="soft">${inWords(note.kind)}, by a ${note.source}</span>
            ${given(likeness) && html`<${Likeness} of=${likeness} floor=${h ? null : note.floor} />`}</p>
          ${text === null
            ? html`<p class="soft">Exactly what came.</p>`
            : html`<div class="expected-pair"><div><p class="did-label">Expected</p>${text ? html`<${coevo.Prose} class="code" text=${text} most=${400} />` : html`<p class="soft">Nothing.</p>`}</div>
              <div><p class="did-label">Came</p>${came === null ? html`<p class="soft">The episode was over.</p>` : html`<${coevo.Prose} class="code" text=${came} most=${400} />`}</div></div>`}
        </div>`;
      })}</div>`);
  };

  /** The interface and the cues that an episode was shown with. */
  const ShownWith = ({ episode }) => {
    const { interface: version, shown_by: by, cue_ids: cues } = episode;
    if (!version && !cues.length) return null;
    const name = by?.name || version;
    const told = cues.length > 0 && html`<p>It was told ${plural(cues.length, "cue")}: ${cues.map((id) => html`<${Tag} key=${id}><${Words} text=${id} most=${34} /><//> `)}</p>`;
    if (!version) return html`<div class="shown-with">${told}</div>`;
    return html`<div class="shown-with">${told}
      <details class="more"><summary>It was shown through the interface <${Words} text=${name} most=${34} /></summary>
        ${by ? html`<${Lines} of=${by} most=${Infinity} />` : html`<p class="soft">What it says was not noted.</p>`}
        ${by && html`<p><a href=${link(["runs", episode.run, "arms", episode.arm])}>All interfaces of ${episode.arm}</a></p>`}</details></div>`;
  };

  /** The labels of one step of an episode. */
  const StepLabels = ({ episode, step }) =>
    episode.notes.filter((note) => note.step === step.number && note.label).map((note, i) => html`<${Label} key=${i} of=${note} />`);

  Object.assign(coevo, { ArmNotes, EpisodeNotes, ShownWith, StepExpected, StepLabels });
})();
