// Starts the pages: the list of tasks, the top bar, and the page in the address.
"use strict";

(() => {
  const { html, h, render, play, useState, useEffect, useRef, usePlace } = coevo;

  const useAsked = (path) => {
    const [found, setFound] = useState({});
    useEffect(() => {
      let current = true;
      play.ask(path).then(
        (data) => current && setFound({ data, path }),
        (error) => current && setFound({ error, path }),
      );
      return () => {
        current = false;
      };
    }, [path]);
    return found;
  };

  /** Consecutive tasks grouped by family: variants of the same task. */
  const families = (tasks) =>
    tasks.reduce((found, task) => {
      const last = found[found.length - 1];
      if (last && last[0].family === task.family) last.push(task);
      else found.push([task]);
      return found;
    }, []);

  const Tasks = ({ begin, busy }) => {
    const [search, setSearch] = useState("");
    const [asked, setAsked] = useState({ q: "", page: 0 });
    const box = useRef(null);
    const { data, error } = useAsked(`tasks?q=${encodeURIComponent(asked.q)}&page=${asked.page}`);
    useEffect(() => {
      const timer = setTimeout(() => setAsked({ q: search, page: 0 }), 150);
      return () => clearTimeout(timer);
    }, [search]);
    coevo.useKeys([{ key: "/", does: "search tasks", run: () => box.current.focus() }]);
    if (error) return html`<p class="bad-words" role="alert">${error.message}</p>`;
    const pages = data ? Math.ceil(data.total / data.per_page) : 0;
    return html`<section class="section" aria-label="Tasks">
      <div class="section-head"><h2>Tasks</h2><span class="soft small num" role="status">${data ? `${data.total} tasks` : ""}</span></div>
      <input ref=${box} type="search" class="full" aria-label="Search tasks" placeholder="Search tasks"
        value=${search} onInput=${(event) => setSearch(event.target.value)} autocomplete="off" />
      <ul class="plain task-list">${families(data ? data.tasks : []).map(
        ([task, ...variants]) => html`<li key=${task.id}><button type="button" class="task" disabled=${busy} onClick=${() => begin(task.id)}>
          <${coevo.Words} text=${task.instruction} most=${260} /><span class="soft small mono"><${coevo.Words} text=${task.name} most=${90} /></span></button>
          ${variants.length > 0 && html`<p class="chips variants"><span class="soft small">Variants</span>${variants.map(
            (one) => html`<button type="button" key=${one.id} disabled=${busy} title=${one.instruction} aria-label=${one.instruction} onClick=${() => begin(one.id)}>
              <${coevo.Words} text=${one.name.slice(one.name.lastIndexOf("_") + 1)} most=${20} /></button>`,
          )}</p>`}</li>`,
      )}</ul>
      ${data && !data.tasks.length && html`<${coevo.Empty} title="No tasks contain these words">Try fewer words.<//>`}
      ${pages > 1 && html`<div class="pager"><span class="num">Page ${data.page + 1} of ${pages}</span><span class="pager-buttons">
        <button type="button" disabled=${data.page === 0} onClick=${() => setAsked({ ...asked, page: data.page - 1 })}>Previous</button>
        <button type="button" disabled=${data.page + 1 >= pages} onClick=${() => setAsked({ ...asked, page: data.page + 1 })}>Next</button></span></div>`}
    </section>`;
  };

  play.Start = () => {
    const { data: about, error } = useAsked("");
    const [busy, setBusy] = useState(false);
    const [wrong, setWrong] = useState("");
    useEffect(() => {
      document.title = about ? `${about.name} · coevo play` : "coevo play";
    }, [about]);
    const begin = async (task) => {
      if (busy) return;
      setBusy(true);
      setWrong("");
      try {
        const begun = await play.ask("games", task ? { task } : {});
        coevo.go(coevo.link(["game", begun.id]));
      } catch (refused) {
        setWrong(refused.message);
        setBusy(false);
      }
    };
    if (error) return html`<main id="main"><p class="bad-words" role="alert">${error.message}</p></main>`;
    if (!about) return html`<main id="main"><p class="boot" role="status">Loading…</p></main>`;
    const left = about.score ? about.score.tasks - about.score.played : 1;
    const what = about.score ? "Play the next task" : about.first ? "Play this task" : "Play a random task";
    const words = busy ? "The engine is starting…" : left > 0 ? what : "All tasks played";
    return html`<main id="main" class="start">
      <div class="page-head"><h1>Play ${about.name}</h1></div>
      <p class="note">${about.title}</p>
      <p class="note">You get the same text, actions and number of steps as an agent. Invalid actions do not count as steps. The episode is graded at the end.
        ${" "}${about.split === "train"
          ? html`You can save a solved episode as a demonstration in <code>${about.demonstrations}</code>.`
          : html`These are ${about.split} tasks: their episodes count, but cannot be saved as demonstrations.`}</p>
      ${about.score && html`<${play.Score} score=${about.score} />`}
      ${about.first && html`<section class="asked" aria-label="Requested task">
        <${coevo.Prose} text=${about.first.instruction} most=${1200} /><p class="soft small mono"><${coevo.Words} text=${about.first.name} /></p></section>`}
      <p class="chips"><button type="button" class="primary big" disabled=${busy || left <= 0} onClick=${() => begin(about.first && about.first.id)}>${words}</button>
        ${about.first && html`<button type="button" class="big" disabled=${busy} onClick=${() => begin(null)}>Play a random task</button>`}</p>
      ${wrong && html`<p class="bad-words" role="alert">${wrong}</p>`}
      ${!about.score && html`<${Tasks} begin=${begin} busy=${busy} />`}
    </main>`;
  };

  coevo.route("", () => html`<${play.Start} />`);
  coevo.route("game/:id", ({ id }) => html`<${play.Game} key=${id} id=${id} />`);

  const App = () => {
    const place = usePlace();
    const [help, setHelp] = useState(null);
    coevo.useKeys([
      { key: "?", does: "show these keys", run: () => setHelp(coevo.keysNow()) },
      {
        key: "Escape",
        does: "leave an input field",
        run: (event) => event.target.blur && event.target.blur(),
      },
    ]);
    const View = place.view;
    const skip = (event) => {
      event.preventDefault();
      document.querySelector("main")?.querySelector("input, textarea, button, a")?.focus();
    };
    return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
      <header class="top">
        <a class="brand" href="#/" aria-label="coevo play: all tasks"><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><path class="brand-line" d="M2 14V9h5V5h7" /><circle class="brand-dot" cx="13" cy="4" r="2.6" /></svg> coevo play</a>
        <span class="grow"></span>
        <button type="button" class="icon" onClick=${() => setHelp(coevo.keysNow())} aria-label="Keys" title="Keys (?)">?</button>
        <${coevo.ThemeSwitch} />
      </header>
      ${View ? html`<${View} ...${place.named} />` : html`<main id="main"><${coevo.Empty} title="Page not found"><a href="#/">All tasks</a><//></main>`}
      ${help && html`<${coevo.Help} keys=${help} onClose=${() => setHelp(null)} />`}`;
  };

  const app = document.getElementById("app");
  app.textContent = "";
  render(h(App), app);
})();
