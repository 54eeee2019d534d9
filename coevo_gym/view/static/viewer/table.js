// Lists: a table of links, one page at a time. The keys j and k move between rows, and Enter opens one.
"use strict";

(() => {
  const { html, cls, useRef, useKeys, count, plural } = coevo;

  const rowLinks = (table) => [...table.querySelectorAll("tbody [data-row]")];

  /** Focus the link of the next row, or of the first row if none has the focus. */
  const step = (table, by) => {
    const links = rowLinks(table);
    if (!links.length) return false;
    const at = links.indexOf(document.activeElement);
    const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by));
    links[next].focus();
    links[next].scrollIntoView({ block: "nearest" });
    return true;
  };

  /**
   * @param columns objects `{label, cell(row), num, wide, sort, optional}`: heading, content of a
   *   cell; flags for numbers and for the column that takes the free space; the sort name; and a
   *   flag for columns that are hidden if all their cells are "".
   * @param href the address of a row; its first cell links to it.
   * @param keyOf a row's key.
   * @param label description of the table for screen readers.
   * @param keys true if the keys j and k move through this table: at most one on a page.
   * @param source returns all rows for a download, or a promise of them; by default, `rows`.
   */
  const Table = ({ columns: all, rows, href, keyOf, label, keys = true, empty, tone, source = () => rows }) => {
    const table = useRef(null);
    const params = coevo.usePlace().params;
    const move = (by) => (table.current ? step(table.current, by) : false);
    useKeys(
      keys
        ? [
            { key: "j", does: "next row", run: () => move(1) },
            { key: "k", does: "previous row", run: () => move(-1) },
          ]
        : [],
    );
    if (!rows.length) return empty || null;
    const columns = all.filter((column) => !column.optional || rows.some((row) => column.cell(row) !== ""));
    const sortBy = ({ sort }) => {
      const down = params.sort === sort ? `-${sort}` : sort;
      coevo.setParams({ sort: params.sort === `-${sort}` ? "" : down });
    };
    const sorted = ({ sort }) =>
      params.sort === sort ? "ascending" : params.sort === `-${sort}` ? "descending" : null;
    return html`<div class="table-box">
      <table ref=${table} class="list">
        <caption class="sr">${label}</caption>
        <thead><tr>${columns.map(
          (column) => html`<th scope="col" key=${column.label} class=${cls({ num: column.num, wide: column.wide })} aria-sort=${column.sort ? sorted(column) : null}>${
            column.sort
              ? html`<button type="button" class="sort" onClick=${() => sortBy(column)}><${coevo.Words} text=${column.label} most=${40} /><span aria-hidden="true">${{ ascending: " ↑", descending: " ↓" }[sorted(column)] || html`<span class="sortable"> ↕</span>`}</span></button>`
              : html`<${coevo.Words} text=${column.label} most=${40} />`
          }</th>`,
        )}</tr></thead>
        <tbody>${rows.map(
          (row, i) => html`<tr key=${keyOf ? keyOf(row) : i} class=${tone && tone(row)}>${columns.map((column, j) => {
            const cell = column.cell(row);
            const inner = j === 0 && href && href(row) ? html`<a data-row href=${href(row)}>${cell}</a>` : cell;
            const classes = cls({ num: column.num, wide: column.wide, none: cell === coevo.NONE || cell === "" || cell === null });
            return j === 0
              ? html`<th scope="row" class=${classes} data-label=${column.label}>${inner}</th>`
              : html`<td class=${classes} data-label=${column.label}>${inner}</td>`;
          })}</tr>`,
        )}</tbody>
      </table>
    </div>
    <${coevo.Download} title=${label} data=${async () => {
      const json = await source();
      return { ...coevo.tableOf(json), json };
    }} />`;
  };

  /** Buttons between the pages of a list. `of` has total, page, pages and per_page. */
  const Pager = ({ of, noun = "row", many }) => {
    const { total, page, pages: last, per_page: size } = of;
    const to = (next) => {
      if (next < 1 || next > last) return false;
      coevo.setParams({ page: next === 1 ? "" : next }, { replace: false });
      return true;
    };
    useKeys(
      last > 1
        ? [
            { key: "]", does: "next page", run: () => to(page + 1) },
            { key: "[", does: "previous page", run: () => to(page - 1) },
          ]
        : [],
    );
    const from = total ? (page - 1) * size + 1 : 0;
    return html`<nav class="pager" aria-label="Pages">
      <span role="status">${
        last > 1 ? `${count(from)}–${count(Math.min(total, page * size))} of ${plural(total, noun, many)}` : plural(total, noun, many)
      }</span>
      ${last > 1 &&
      html`<span class="pager-buttons">
        <button type="button" disabled=${page <= 1} onClick=${() => to(page - 1)}>← Previous</button>
        <span class="soft">page ${count(page)} of ${count(last)}</span>
        <button type="button" disabled=${page >= last} onClick=${() => to(page + 1)}>Next →</button>
      </span>`}
    </nav>`;
  };

  Object.assign(coevo, { Table, Pager });
})();
