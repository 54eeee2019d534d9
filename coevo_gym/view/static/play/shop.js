// WebShop as a clickable shop, parsed from the text that an agent sees.
"use strict";

(() => {
  const { html, cls, play, useState, useEffect, useRef } = coevo;
  const BEHIND = ["Description", "Features", "Reviews"];

  const SearchBar = ({ act, busy, big, page }) => {
    const [words, setWords] = useState("");
    const box = useRef(null);
    useEffect(() => {
      if (big && box.current) box.current.focus({ preventScroll: true });
    }, [big, page]);
    coevo.useKeys([{ key: "/", does: "focus the search field", run: () => box.current.focus() }]);
    const send = (event) => {
      event.preventDefault();
      const clean = words.replace(/[[\]\s]+/g, " ").trim();
      if (!clean) return;
      box.current.blur(); // so that the keys of the next page work
      act(`search[${clean}]`);
    };
    return html`<form class=${cls("shop-search", { big })} role="search" onSubmit=${send}>
      <input ref=${box} type="search" name="search" aria-label="Search the shop" placeholder="Search the shop"
        value=${words} onInput=${(event) => setWords(event.target.value)} autocomplete="off" maxlength="2000" />
      <button class=${cls({ primary: big })} disabled=${busy || !words.trim()}>Search</button>
    </form>`;
  };

  const Press = ({ thing, act, busy, primary, children }) =>
    html`<button type="button" class=${cls({ primary, chosen: thing.chosen })} disabled=${busy}
      aria-pressed=${thing.chosen ? "true" : null} onClick=${() => act(thing.action)}>${children || html`<${coevo.Words} text=${thing.label} />`}</button>`;

  const Results = ({ shop, act, busy }) => {
    coevo.useKeys(
      shop.listed.slice(0, 10).map((item, i) => ({
        key: String((i + 1) % 10),
        does: i === 0 ? "open the product with this number (0 for the tenth)" : "",
        run: () => !busy && act(item.action),
      })),
    );
    if (!shop.listed.length) return html`<${coevo.Empty} title="No products on this page">Search for other words, or go back.<//>`;
    return html`<ol class="products">
      ${shop.listed.map(
        (item, i) => html`<li class="product" key=${item.action}>
          <span class="product-number num" aria-hidden="true">${i + 1}</span>
          <button type="button" class="link" disabled=${busy} onClick=${() => act(item.action)}><${coevo.Words} text=${item.title || item.asin} most=${400} /></button>
          <div class="product-facts"><span class="price num">${item.price}</span> <span class="soft mono">${item.asin}</span></div>
        </li>`,
      )}
    </ol>`;
  };

  const Item = ({ shop, act, busy }) => html`<article class="item">
    <h2><${coevo.Words} text=${shop.title} most=${600} /></h2>
    <p><span class="price num">${shop.price}</span> <span class="soft mono">${shop.asin}</span></p>
    ${shop.choices.map(
      ({ name, values }) => html`<fieldset class="option" key=${name}>
        <legend><${coevo.Words} text=${name} /></legend>
        <div class="chips">${values.map((value) => html`<${Press} key=${value.action} thing=${value} act=${act} busy=${busy} />`)}</div>
      </fieldset>`,
    )}
  </article>`;

  const Behind = ({ shop }) => html`<article class="item">
    <h2>${shop.page[0].toUpperCase() + shop.page.slice(1)}</h2>
    ${shop.texts.length
      ? shop.texts.map((text, i) => html`<${coevo.Prose} key=${i} text=${text} />`)
      : html`<p class="soft">This page is empty.</p>`}
  </article>`;

  /** Selected options, on every page of a product. */
  const Chosen = ({ chosen }) =>
    chosen.length > 0 &&
    html`<p class="soft small chosen-list">Selected: ${chosen.map(
      ([name, value], i) => html`${i > 0 && ", "}<${coevo.Words} text=${`${name} ${value}`} />`,
    )}</p>`;

  /** All actions, each with the resulting page. */
  const Way = ({ state }) => html`<section class="section" aria-label="Your actions">
    <div class="section-head"><h2>Your actions</h2></div>
    ${play.stepsOf(state).map(
      ({ action, result }, i) => html`<details class="step" key=${i}>
        <summary><span class="turn-number num">${i + 1}</span> <span class="mono"><${coevo.Words} text=${action} most=${200} /></span></summary>
        <${coevo.Prose} text=${result.replaceAll(" [SEP] ", "\n")} most=${4000} />
      </details>`,
    )}
  </section>`;

  const Shop = ({ shop, state, act, busy }) => {
    const of = (names) => shop.things.filter(({ label }) => names.includes(label));
    const back = of(["Back to Search", "< Prev", "Next >"]);
    const buy = of(["Buy Now"])[0];
    const follow = (label) => {
      const thing = of([label])[0];
      return thing && !busy ? act(thing.action) : false;
    };
    coevo.useKeys([
      { key: "n", does: "next page of results", run: () => follow("Next >") },
      { key: "p", does: "previous page", run: () => follow("< Prev") },
      { key: "b", does: "new search", run: () => follow("Back to Search") },
    ]);
    const big = shop.page === "search";
    return html`<div class="board shop">
      <div class="shop-bar">
        ${back.length > 0 &&
        html`<nav class="shop-nav" aria-label="Shop navigation">${back.map((thing) => html`<${Press} key=${thing.action} thing=${thing} act=${act} busy=${busy} />`)}</nav>`}
        <${SearchBar} act=${act} busy=${busy} big=${big} page=${state.step} />
      </div>
      ${shop.page === "results" &&
      html`<p class="soft">Page ${shop.number || 0}, ${shop.found || 0} found</p><${Results} shop=${shop} act=${act} busy=${busy} />`}
      ${shop.page === "item" && html`<${Item} shop=${shop} act=${act} busy=${busy} />`}
      ${!["search", "results", "item", "done"].includes(shop.page) && html`<${Behind} shop=${shop} />`}
      <${Chosen} chosen=${Object.entries(shop.chosen)} />
      ${buy &&
      html`<div class="shop-buy">
        <div class="chips">${of(BEHIND).map((thing) => html`<${Press} key=${thing.action} thing=${thing} act=${act} busy=${busy} />`)}</div>
        <${Press} thing=${buy} act=${act} busy=${busy} primary />
      </div>`}
    </div>`;
  };

  play.boards.webshop = ({ state, act, busy, over }) => {
    if (over) return html`<${Way} state=${state} />`;
    if (!state.shop) return html`<${play.TextBoard} state=${state} act=${act} busy=${busy} over=${over} />`;
    return html`<${Shop} shop=${state.shop} state=${state} act=${act} busy=${busy} />`;
  };
})();
