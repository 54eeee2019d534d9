// Search in one run or in all.
"use strict";

(() => {
  const { html, link, Words, Page, Loaded, Section, Table, Empty, count } = coevo;

  const NOUNS = { run: "Runs", task: "Tasks", trajectory: "Trajectories", draft: "Drafts", eval: "Evaluations", episode: "Evaluation episodes" };

  const COLUMNS = [
    { label: "Text", wide: true, cell: (hit) => html`<${Words} text=${hit.text || hit.title} most=${240} />` },
    { label: "Note", cell: (hit) => html`<${Words} text=${hit.note} most=${120} />` },
    { label: "Run", cell: (hit) => html`<${Words} text=${hit.run} most=${40} />` },
  ];

  const lists = { task: "tasks", trajectory: "trajectories", draft: "drafts" };

  const Hits = ({ found, run }) => Object.keys(NOUNS).filter((what) => found.totals[what]).map((what, i) => {
    const rows = found.hits.filter((hit) => hit.what === what);
    const total = found.totals[what];
    const all = run && lists[what] && total > rows.length && html`<a href=${link(["runs", run, lists[what]], { q: found.q })}>All ${count(total)}</a>`;
    return html`<${Section} key=${what} title=${`${NOUNS[what]}: ${count(total)}`} aside=${all}>
      <${Table} label=${NOUNS[what]} rows=${rows} columns=${COLUMNS} keys=${i === 0} keyOf=${(hit) => hit.path} href=${(hit) => coevo.hrefOf(hit.path)} />
    <//>`;
  });

  coevo.views.Search = ({ params }) => {
    const q = (params.q || "").trim();
    const found = coevo.useData(q ? ["search"] : null, { q, run: params.run });
    const title = q ? `Search: ${q}` : "Search";
    return html`<${Page} title=${title} run=${params.run || undefined} tab="search" wide>
      ${params.run && html`<p class="held"><span>In the run <b><${Words} text=${params.run} /></b></span> <a href=${link(["search"], { q })}>Search all runs</a></p>`}
      ${!q ? html`<${Empty} title="Enter words to search for."><p>Results contain all words in a task, an action or a gate's reason. Press <kbd>/</kbd> to type.</p><//>` : html`<${Loaded} of=${found}>${(result) => html`
        ${result.hits.length === 0
          ? html`<${Empty} title="No results contain all of these words."><p>Try fewer words, or part of a word.</p><//>`
          : html`<${Hits} found=${result} run=${params.run} />`}`}<//>`}
    <//>`;
  };

  coevo.route("search", coevo.views.Search);
})();
