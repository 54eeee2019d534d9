// Data access: requests to the server or, in an exported page, to the data in the page itself
// (exported.js). Responses are cached, and requested again when a run changes.
"use strict";

(() => {
  const { useState, useEffect } = coevo;
  const MOST_KEPT = 80;

  /** The packed data in an exported page; null if a server answers. */
  const still = () => {
    if (window.coevoExport === undefined) {
      const node = document.getElementById("coevo-export");
      window.coevoExport = node ? node.textContent : null;
    }
    return window.coevoExport;
  };

  const given = (params) =>
    Object.entries(params)
      .filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)
      .sort();

  const addressOf = (parts, params) => {
    const path = parts.map((part) => coevo.encode(part)).join("/");
    const query = new URLSearchParams(given(params)).toString();
    return query ? `${path}?${query}` : path;
  };

  const problem = (status, message, places = []) => Object.assign(new Error(message), { status, places });

  const fetched = async (address, signal) => {
    let answer;
    try {
      answer = await fetch(`api/${address}`, { signal, headers: { Accept: "application/json" } });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw problem(0, "The viewer was stopped. Start `coevo view` again, then try again.");
    }
    if (answer.ok) return answer.json(); // if `signal` aborts it, this throws and nothing is cached
    const body = await answer.json().catch(() => ({}));
    throw problem(answer.status, body.message || `The server answered with status ${answer.status}.`, body.places);
  };

  const kept = new Map();

  /** Request data from the API: `get("runs/demo/tasks", { page: 2 })`; the path may also be a list. */
  const get = async (path, params = {}, signal) => {
    const parts = Array.isArray(path) ? path : path.split("/");
    const address = addressOf(parts, params);
    const file = still();
    const found = file
      ? await coevo.answerFrom(file, parts, Object.fromEntries(given(params)))
      : await fetched(address, signal);
    kept.delete(address);
    kept.set(address, found);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return found;
  };

  // Changes of runs, as the server reports them.

  const followers = new Set();
  let state = null;
  let source = null;

  const say = (next, change = null) => {
    state = next;
    for (const follower of followers) follower(next, change);
  };

  const follow = () => {
    if (source || still()) return;
    source = new EventSource("api/live");
    source.onopen = () => {
      const missed = state === "off"; // changes since then are unknown
      if (missed) kept.clear();
      say("on", missed ? {} : null);
    };
    source.onerror = () => say("off");
    source.onmessage = (event) => {
      kept.clear();
      say("on", JSON.parse(event.data));
    };
  };

  /** The connection: "on", "off", or "still" for an exported page; null until it is known. */
  const useLive = () => {
    const [now, setNow] = useState(still() ? "still" : state);
    useEffect(() => {
      follow();
      const follower = (next) => setNow(next);
      followers.add(follower);
      return () => followers.delete(follower);
    }, []);
    return now;
  };

  const TITLES = {
    0: "The viewer is not running",
    400: "Invalid request",
    404: "Not found",
    409: "This run cannot be read",
  };
  const told = (error) => ({ title: TITLES[error.status] || "Loading failed", message: error.message, places: error.places });

  // Runs that do not exist according to earlier requests.

  const missing = new Set();
  const watchers = new Set();

  /** Record from the outcome of a request whether its run exists. */
  const noteRun = ([root, run, ...rest], error) => {
    if (root !== "runs" || run === undefined) return;
    const lost = Boolean(error && error.status === 404 && (rest.length === 0 || error.places?.length));
    if (lost === missing.has(run) || (error && !lost)) return;
    if (lost) missing.add(run);
    else missing.delete(run);
    for (const watcher of watchers) watcher((n) => n + 1);
  };

  /** True once a request has shown that a run does not exist. */
  const useMissing = (run) => {
    const [, setTurn] = useState(0);
    useEffect(() => {
      watchers.add(setTurn);
      return () => watchers.delete(setTurn);
    }, []);
    return missing.has(run);
  };

  /**
   * The result of `ask(signal)`: `{data, error, loading, again}`. Old data stays until newer data
   * arrives. With `run`, `ask` is called again when that run changes; "" stands for any run.
   *
   * @param parts a path in the API, which names the run; null or undefined to ask for nothing.
   * @param address stands for all that `ask` depends on.
   */
  const useAnswer = (parts, address, ask, run) => {
    const [now, setNow] = useState(() => ({ address, data: kept.get(address), loading: true }));
    const [turn, setTurn] = useState(0);
    useEffect(() => {
      if (!parts) return undefined;
      const stop = new AbortController();
      const before = kept.get(address);
      setNow((was) => ({ address, data: before === undefined ? was.data : before, loading: true }));
      ask(stop.signal).then(
        (data) => {
          noteRun(parts, null);
          if (!stop.signal.aborted) setNow({ address, data, loading: false });
        },
        (error) => {
          noteRun(parts, error);
          if (!stop.signal.aborted) setNow({ address, error: told(error), loading: false });
        },
      );
      return () => stop.abort();
    }, [address, turn]);
    useEffect(() => {
      if (run === undefined) return undefined;
      let timer = 0;
      const follower = (_, change) => {
        if (!change || (change.run && run && change.run !== run)) return;
        clearTimeout(timer);
        timer = setTimeout(() => setTurn((n) => n + 1), 250);
      };
      followers.add(follower);
      return () => {
        clearTimeout(timer);
        followers.delete(follower);
      };
    }, [run]);
    const loading = now.loading || now.address !== address; // the effect has not run yet
    return { ...now, loading, again: () => setTurn((n) => n + 1) };
  };

  /** The response to a request, as `useAnswer` returns it. */
  const useData = (parts, params = {}, { run } = {}) =>
    useAnswer(parts, parts ? addressOf(parts, params) : "", (signal) => get(parts, params, signal), run);

  /** The responses to several requests, as a list; all paths are in the same run. */
  const useSeveral = (places, { run } = {}) =>
    useAnswer(places[0], JSON.stringify(places), (signal) => Promise.all(places.map((place) => get(place, {}, signal))), run);

  const MOST_PAGES = 20;

  /** The rows on the first `most` pages of 500 rows: `{rows, total}`. */
  const rowsOf = async (parts, params, signal, most) => {
    const ask = (page) => get(parts, { ...params, per_page: 500, page }, signal);
    const { rows, total, pages } = await ask(1);
    const later = [];
    for (let page = 2; page <= Math.min(pages, most); page++) later.push(...(await ask(page)).rows);
    return { rows: [...rows, ...later], total };
  };

  /** The first 10,000 rows of a list: `{rows, total}` as data. */
  const useRows = (parts, { run } = {}) =>
    useAnswer(parts, `${addressOf(parts, {})} rows`, (signal) => rowsOf(parts, {}, signal, MOST_PAGES), run);

  /** A function that requests all rows that match the filters, for a download. */
  const allRows = (parts, params) => async () => (await rowsOf(parts, params, undefined, Infinity)).rows;

  /** The contents and the version of the viewer. */
  const useAbout = () => useData(["about"]).data;

  let kindsOf = [null, {}];
  /** The kinds of signals by name; the same object as long as they are the same. */
  const useKinds = () => {
    const about = useAbout();
    if (about && kindsOf[0] !== about) kindsOf = [about, Object.fromEntries(about.kinds.map((kind) => [kind.name, kind]))];
    return kindsOf[1];
  };

  Object.assign(coevo, { get, useData, useSeveral, useRows, allRows, useLive, useAbout, useKinds, useMissing, isExport: () => Boolean(still()) });
})();
