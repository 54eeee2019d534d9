// A 2×2 table of the tasks that two policies solve.
"use strict";

(() => {
  const { html, count, percent, Words } = coevo;
  const { shade } = coevo.charts;

  const Cell = ({ n, of, tone, href, words }) => {
    const inner = html`<b>${count(n)}</b> <span class="soft">${percent(of ? n / of : NaN)}</span><small>${words}</small>`;
    return html`<td class=${tone} style=${{ "--share": shade(of ? 0.32 * (n / of) : 0) }}>
      ${href && n ? html`<a href=${href}>${inner}</a>` : inner}</td>`;
  };

  /**
   * Numbers of tasks that both policies solve, only one solves, or neither solves.
   *
   * @param a name of the side whose outcomes are the rows.
   * @param b name of the side whose outcomes are the columns.
   * @param both, onlyA, onlyB, neither numbers of tasks.
   * @param hrefs links to the lists of these tasks, with the same names; each may be missing.
   */
  coevo.Cross = ({ a, b, both, onlyA, onlyB, neither, hrefs = {} }) => {
    const of = both + onlyA + onlyB + neither;
    const name = (text) => html`<${Words} text=${text} most=${60} />`;
    const rows = [{ a: true, b: true, tasks: both }, { a: true, b: false, tasks: onlyA }, { a: false, b: true, tasks: onlyB }, { a: false, b: false, tasks: neither }];
    return html`<table class="cross">
      <caption class="sr">Number of tasks that each side solves</caption>
      <thead><tr><td></td><th scope="col">${name(b)} solves</th><th scope="col">${name(b)} fails</th></tr></thead>
      <tbody>
        <tr><th scope="row">${name(a)} solves</th>
          <${Cell} n=${both} of=${of} href=${hrefs.both} words="both" />
          <${Cell} n=${onlyA} of=${of} href=${hrefs.onlyA} tone="changed" words="got worse" /></tr>
        <tr><th scope="row">${name(a)} fails</th>
          <${Cell} n=${onlyB} of=${of} href=${hrefs.onlyB} tone="changed" words="got better" />
          <${Cell} n=${neither} of=${of} href=${hrefs.neither} words="neither" /></tr>
      </tbody></table>
      <${coevo.Download} title="Tasks that each side solves" data=${() => ({ ...coevo.tableOf(rows), json: { a, b, rows } })} />`;
  };
})();
