// The responses of an exported page, from the data in the page and in files beside it. Served pages
// do not load this script.
//
// A part of the data consists of JSON lines, compressed with deflate and encoded in base64. Each line
// has
//   path      the path of the request
//   answer    the response, in which {"$t": 3} stands for the fourth text of the part
//   texts     the texts that are new in this line
// The last line of the page's own part has
//   files     the name of the file for each path that is in another file
//   lists     filters and sorts of each kind of list, by the last word of its path
//   left_out  sentences about data that this export does not contain
"use strict";

(() => {
  const PER_PAGE = 50;
  const MOST_KEPT = 100;
  const parts = new Map(); // data files that are loaded or being loaded
  const arrivals = new Map();
  const kept = new Map();

  const problem = (status, kind, message) => Object.assign(new Error(message), { status, kind, title: "Not found" });

  const unpacked = async (text) => {
    if (!globalThis.DecompressionStream) {
      throw problem(0, "TooOld", "This browser cannot unpack the page's data. Use a browser from 2023 or later.");
    }
    const bytes = Uint8Array.from(atob(text.trim()), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const part = { answers: new Map(), texts: [], files: {} };
    for (const line of (await new Response(stream).text()).split("\n").filter(Boolean)) {
      const { path, answer, texts = [], ...more } = JSON.parse(line);
      for (const one of texts) part.texts.push(one);
      if (path) part.answers.set(path, answer);
      Object.assign(part, more);
    }
    return part;
  };

  let own = null;
  /** The part in the page itself, unpacked on first use. */
  const opened = (text) => (own = own || unpacked(text));

  /** Called by a data file when it is loaded. */
  coevo.takeExport = (name, text) => arrivals.get(name)(unpacked(text));

  const load = (name) => {
    if (!parts.has(name)) {
      const here = new Promise((resolve, reject) => {
        arrivals.set(name, resolve);
        const script = document.createElement("script");
        script.src = `data/${name}.js`;
        script.onerror = () => reject(problem(404, "NotFound", `The file data/${name}.js is missing. Copy the whole folder of the export.`));
        document.head.appendChild(script);
      });
      parts.set(name, here);
    }
    return parts.get(name);
  };

  /** Replace the references in a response by their texts. */
  const whole = (value, texts) => {
    if (Array.isArray(value)) return value.map((one) => whole(one, texts));
    if (value === null || typeof value !== "object") return value;
    if (typeof value.$t === "number") return texts[value.$t];
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, whole(one, texts)]));
  };

  const look = async (file, path) => {
    if (kept.has(path)) return kept.get(path);
    if (!file.answers.has(path) && file.files[path] === undefined) {
      throw problem(404, "NotFound", [`${path} is not in this export.`, ...file.left_out].join(" "));
    }
    const part = file.answers.has(path) ? file : await load(file.files[path]);
    const answer = whole(part.answers.get(path), part.texts);
    kept.set(path, answer);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return answer;
  };

  const fieldOf = (row, name) => name.split(".").reduce((value, key) => (value == null ? null : value[key]), row);
  const known = (value) => value !== null && value !== undefined;
  const fold = (text) => text.toLowerCase();
  const wordsOf = (text) => fold(text).split(/\s+/).filter(Boolean);

  // The operations of coevo_gym/view/filters.py.
  const matches = {
    is: (value, wanted) => wanted.includes(String(value)),
    has: (value, wanted) =>
      wanted.some((one) => (one === "any" ? value.length > 0 : one === "none" ? value.length === 0 : value.includes(one))),
    from: (value, wanted) => known(value) && wanted.some((one) => value >= Number(one)),
    to: (value, wanted) => known(value) && wanted.some((one) => value <= Number(one)),
    more: (value, wanted) => known(value) && wanted.includes(String(value > 0)),
    words: (value, wanted) => wanted.every((one) => wordsOf(one).every((word) => value.includes(word))),
  };

  const given = (value) => [].concat(value).filter((one) => known(one) && one !== "").map(String);

  const sorted = (rows, key, sign) => {
    if (key === "_place") return sign < 0 ? [...rows].reverse() : rows; // the original order
    const has = rows.filter((row) => known(fieldOf(row, key)));
    const lacks = rows.filter((row) => !known(fieldOf(row, key)));
    const order = (a, b) => (a === b ? 0 : sign * (a < b ? -1 : 1));
    return [...has.sort((a, b) => order(fieldOf(a, key), fieldOf(b, key))), ...lacks];
  };

  const filtered = (all, rules, params) => {
    let rows = all;
    for (const [name, value] of Object.entries(params)) {
      const wanted = given(value);
      if (!wanted.length || ["page", "per_page", "sort"].includes(name)) continue;
      const rule = rules.filters[name];
      if (!rule) throw problem(400, "BadRequest", `Unknown parameter ${name}.`);
      rows = rows.filter((row) => matches[rule[0]](fieldOf(row, rule[1]), wanted));
    }
    return rows;
  };

  /** Rejections by gate among the drafts that match all filters except those for the gate. */
  const gatesOf = (answer, rules, { gate, accepted, ...others }) => {
    if (!answer.gates) return {};
    const gates = {};
    const rows = filtered(answer.rows, rules, others);
    for (const row of rows) if (!row.accepted) gates[row.gate] = (gates[row.gate] || 0) + 1;
    const most = Object.entries(gates).sort((a, b) => b[1] - a[1]);
    return { gates: Object.fromEntries(most), accepted: rows.filter((row) => row.accepted).length };
  };

  /** Filter and sort a list, and return one page, as the server does. */
  const listed = (answer, rules, params) => {
    let rows = filtered(answer.rows, rules, params);
    const by = params.sort || "";
    if (by) {
      const key = rules.sorts[by.replace(/^-/, "")];
      if (!key) throw problem(400, "BadRequest", `Unknown sort ${by}.`);
      rows = sorted(rows, key, by.startsWith("-") ? -1 : 1);
    }
    const size = Number(params.per_page || PER_PAGE);
    const pages = Math.max(1, Math.ceil(rows.length / size));
    const page = Math.min(pages, Number(params.page || 1));
    const counts = gatesOf(answer, rules, params);
    return { ...answer, ...counts, rows: rows.slice((page - 1) * size, page * size), total: rows.length, page, pages, per_page: size };
  };

  const search = async (file, params) => {
    const words = wordsOf(params.q || "");
    const runs = given(params.run);
    const limit = Number(params.limit || 20);
    const totals = {};
    const hits = (await look(file, "search")).hits.filter((hit) => {
      if (!words.length || (runs.length && !runs.includes(hit.run))) return false;
      if (!words.every((word) => hit._words.includes(word))) return false;
      totals[hit.what] = (totals[hit.what] || 0) + 1;
      return totals[hit.what] <= limit;
    });
    return { q: params.q || "", hits, totals, read: 1 };
  };

  /** The response to a request of `coevo.get`, from the packed data `text`. */
  coevo.answerFrom = async (text, parts, params = {}) => {
    const file = await opened(text);
    const path = parts.join("/");
    if (path === "search") return search(file, params);
    if (path === "compare") return look(file, `compare?a=${params.a || ""}&b=${params.b || ""}`);
    const answer = await look(file, path);
    const rules = file.lists[parts[parts.length - 1]];
    return rules && answer.rows ? listed(answer, rules, params) : answer;
  };
})();
