// A comparison of two policies on the same tasks: paired difference, test, and tasks that differ.
"use strict";

(() => {
  const {
    html, link, Words, Page, Loaded, Section, Figures, Table, Empty, Chart, Choice, Tag, useState, useEffect, count,
    percent, plural, given,
  } = coevo; // prettier-ignore
  const { formats } = coevo.charts;

  const POINTS = "percentage points";
  const points = (value) => (given(value) ? `${formats.points(value)}` : coevo.NONE);
  const chance = (p) => (!given(p) ? coevo.NONE : p >= 0.001 ? p.toFixed(3) : p.toExponential(1));

  // ---- choice of the sides --------------------------------------------------------------------

  /** The link to one side: `runs/{run}/{arm}` or `evals/{name}`. */
  const placeOf = (place) => {
    const [what, name, arm] = place.split("/");
    if (what === "evals") return link(["evals", name]);
    return arm ? link(["runs", name, "arms", arm]) : link(["runs", name]);
  };

  const Sides = ({ data, a, b }) => {
    const choose = (changes) => coevo.go(link(["compare"], { a, b, ...changes }), { replace: true });
    const field = (label, value, name) => html`<label class="field"><span>${label}</span>
      <select name=${name} onChange=${(event) => choose({ [name]: event.target.value })}>
        ${[...new Set([value, ...data.places])].map((place) => html`<option value=${place} selected=${place === value}>${place}</option>`)}
      </select></label>`;
    return html`<div class="filters">
      ${field("A", data.place_a, "a")} ${field("B", data.place_b, "b")}
      <button type="button" onClick=${() => choose({ a: data.place_b, b: data.place_a })}>Swap</button>
    </div>`;
  };

  const Side = ({ name, label, place, success, samples: [fewest, most], only }) => html`<div class="card">
    <h3>${name}: <a href=${placeOf(place)}><${Words} text=${label} most=${80} /></a></h3>
    <p><b class="num">${percent(success)}</b> <span class="soft">solved${most > 1 ? `, ${fewest === most ? "" : `${fewest} to `}${most} episodes per task` : ""}</span></p>
    ${only > 0 && html`<p class="soft">Excluded: ${plural(only, "task")} without a result on the other side.</p>`}
  </div>`;

  // ---- the difference -------------------------------------------------------------------------

  const Difference = ({ found, test }) => {
    const ends = [found.low, found.high, found.difference].filter(given).map(Math.abs);
    const far = Math.max(0.02, ...ends) * 1.15;
    const row = { label: "B − A", value: found.difference, low: found.low, high: found.high, said: "points" };
    return html`<${Chart} kind="intervals" title="Paired difference" rows=${[row]} at=${0}
      x=${{ label: `success, B − A, in ${POINTS}`, format: "points", domain: [-far, far] }}
      note=${`Over ${plural(found.tasks, "task")}: ${count(found.better)} better, ${count(found.worse)} worse, ${count(found.tasks - found.better - found.worse)} equal. p\u00a0=\u00a0${chance(found.p)} (${test}).`} />`;
  };

  const MOST_TYPES = 24;

  const ByType = ({ types }) => {
    const kinds = [...new Set(types.map(({ kind }) => kind))];
    const [chosen, choose] = useState("");
    if (!kinds.length) return null;
    const kind = kinds.includes(chosen) ? chosen : kinds[0];
    const mine = d3.sort(types.filter((one) => one.kind === kind), ({ tasks }) => -tasks).slice(0, MOST_TYPES); // prettier-ignore
    const name = kind.replaceAll("_", " ");
    return html`<${Section} title="By task type">
      ${kinds.length > 1 && html`<${Choice} label="Grouping of tasks" value=${kind} onChange=${choose} options=${kinds.map((one) => [one, one.replaceAll("_", " ")])} />`}
      <${Table} label=${`Success by ${name}`} rows=${mine} keys=${false} keyOf=${(one) => one.value} columns=${[
        { label: name, cell: (one) => html`<${Words} text=${one.value} most=${60} />` },
        { label: "Tasks", num: true, cell: (one) => count(one.tasks) },
        { label: "A", num: true, cell: (one) => percent(one.success_a) },
        { label: "B", num: true, cell: (one) => percent(one.success_b) },
        { label: "B − A, points", num: true, cell: (one) => points(one.success_b - one.success_a) },
        { label: "Only B solves", num: true, cell: (one) => count(one.won) },
        { label: "Only A solves", num: true, cell: (one) => count(one.lost) },
      ]} />
    <//>`;
  };

  // ---- tasks that only one side solves -----------------------------------------------------------

  /** Number of tasks listed at first. */
  const FEW = 60;

  const Changed = ({ title, id, tasks, links: [a, b], several, note }) => {
    const [all, showAll] = useState(false);
    const shown = all ? tasks : tasks.slice(0, FEW);
    const side = (path, share) => {
      const said = several ? percent(share, 0) : share >= 0.5 ? "✓ solved" : "✗ failed";
      return path ? html`<a href=${`#/${path}`}>${said}</a>` : said;
    };
    const both = (task) => (a[task.id] && b[task.id] ? link(["side"], { a: a[task.id], b: b[task.id] }) : null);
    return html`<${Section} title=${title} id=${id} note=${note} aside=${html`<${Tag}>${count(tasks.length)}<//>`}>
      ${tasks.length === 0
        ? html`<p class="soft">None.</p>`
        : html`<${Table} label=${title} rows=${shown} keyOf=${(task) => task.id} href=${both} keys=${id === "won"} source=${() => tasks} columns=${[
            { label: "Task", cell: (task) => html`<${Words} text=${task.name} most=${48} />` },
            { label: "A", cell: (task) => side(a[task.id], task.success_a) },
            { label: "B", cell: (task) => side(b[task.id], task.success_b) },
            { label: "Instruction", wide: true, cell: (task) => html`<${Words} text=${task.instruction} most=${200} />` },
          ]} />`}
      ${shown.length < tasks.length && html`<p><button type="button" onClick=${() => showAll(true)}>Show all ${count(tasks.length)}</button></p>`}
    <//>`;
  };

  const Compare = ({ params }) => {
    const { a = "", b = "" } = params;
    const found = coevo.useData(a ? ["compare"] : null, { a, b });
    const at = (list) => link(["compare"], { a, b, at: list });
    const ready = found.data !== undefined;
    useEffect(() => {
      const node = ready && params.at && document.getElementById(params.at);
      if (node) node.scrollIntoView();
    }, [params.at, ready]);
    return html`<${Page} title="Comparison" crumbs=${[["Runs", "#/"], ["Evaluations", "#/evals"]]} wide>
      ${!a && html`<${Empty} title="Choose what to compare."><p>Open an evaluation or an arm of a run, and choose the other side there.</p><//>`}
      ${a && html`<${Loaded} of=${found}>${(data) => {
        const { found, links_a, links_b } = data;
        const several = Math.max(found.samples_a[1], found.samples_b[1]) > 1;
        const linked = [...found.won, ...found.lost].some(({ id }) => links_a[id] && links_b[id]);
        const beside = linked ? "Click a name to see both episodes side by side." : "The steps of these episodes are not stored.";
        return html`
          <${Sides} data=${data} a=${a} b=${b} />
          <p class="headline">${data.verdict}</p>
          <div class="cards">
            <${Side} name="A" label=${found.a} place=${data.place_a} success=${found.success_a} samples=${found.samples_a} only=${found.only_in_a} />
            <${Side} name="B" label=${found.b} place=${data.place_b} success=${found.success_b} samples=${found.samples_b} only=${found.only_in_b} />
          </div>
          ${found.panels && html`<p class="note">${found.panels}</p>`}
          ${found.uneven.length > 0 && html`<div class="notice" role="note"><p>The two sides used different settings:</p><ul>${found.uneven.map((one) => html`<li><${Words} text=${one} /></li>`)}</ul></div>`}
          <${Figures} of=${[
            ["B − A", `${points(found.difference)} points`, given(found.low) && `${points(found.low)} to ${points(found.high)}`],
            ["Tasks", count(found.tasks), `${found.benchmark}, ${found.split}`],
            ["p", chance(found.p), data.test],
          ]} />
          <div class="chart-grid">
            <${Difference} found=${found} test=${data.test} />
            <div><p class="chart-title">Solved tasks</p>
              <${coevo.Cross} a="A" b="B" both=${found.both} onlyA=${found.lost.length} onlyB=${found.won.length} neither=${found.neither} hrefs=${{ onlyA: at("lost"), onlyB: at("won") }} />
              ${several && html`<p class="note">A task counts as solved if at least half of its episodes succeed.</p>`}</div>
          </div>
          <${ByType} types=${found.types} />
          <${Changed} title="Only B solves" id="won" tasks=${found.won} links=${[links_a, links_b]} several=${several} note=${beside} />
          <${Changed} title="Only A solves" id="lost" tasks=${found.lost} links=${[links_a, links_b]} several=${several} note=${beside} />`;
      }}<//>`}
    <//>`;
  };

  coevo.views.Compare = Compare;
  coevo.route("compare", Compare);
})();
