// Starts the pages: the top bar and the page in the address.
"use strict";

(() => {
  const { html, h, render, play, useState, usePlace } = coevo;

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
