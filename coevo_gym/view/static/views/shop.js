// The page of an observation: a page of the shop, or formatted text. The clicked element is marked;
// on the current page of an episode that a user plays, the elements are buttons.
"use strict";

(() => {
  const { html, cls, Words, Prose, plural } = coevo;

  /** "click[buy now]" as `{verb: "click", what: "buy now"}`. */
  const moveOf = (action) => {
    const found = /^\s*(search|click)\[([\s\S]*)\]\s*$/i.exec(action || "");
    return found ? { verb: found[1].toLowerCase(), what: found[2].trim().toLowerCase() } : {};
  };

  const Clickable = ({ name, move, children, look = "shop-button" }) => {
    const text = String(name).trim().toLowerCase();
    const taken = move.verb === "click" && move.what === text;
    const label = children || html`<${Words} text=${name} most=${80} />`;
    const choice = move.choices && move.choices.find((one) => moveOf(one).what === text);
    if (choice) return html`<button type="button" class=${look} disabled=${move.busy} onClick=${() => move.act(choice)}>${label}</button>`;
    return html`<span class=${cls(look, { taken })}>${label}${taken && html`<span class="sr"> (clicked)</span>`}</span>`;
  };

  const Results = ({ page, move }) => html`
    <p class="shop-count">${plural(page.found, "product")} found, page ${page.number}</p>
    ${page.products.length === 0 && html`<p class="soft">No products on this page.</p>`}
    <ol class="shop-products">${page.products.map(
      (item) => html`<li key=${item.asin}><${Clickable} name=${item.asin} move=${move} look="shop-product">
        <span class="shop-thumb" aria-hidden="true"></span>
        <span><b><${Words} text=${item.title} most=${140} /></b><span class="soft mono"><${Words} text=${item.asin} /></span></span>
        <span class="shop-price"><${Words} text=${item.price} /></span><//></li>`,
    )}</ol>`;

  const Item = ({ page, move }) => html`<div class="shop-item">
    <span class="shop-thumb large" aria-hidden="true"></span>
    <div>
      <p class="shop-title"><${Words} text=${page.title} most=${300} /></p>
      <p class="shop-price"><${Words} text=${page.price} /></p>
      ${page.options.map(
        (option) => html`<div class="shop-option" key=${option.name}><span class="soft"><${Words} text=${option.name} /></span>
          <span class="shop-values">${option.values.map(
            (value) => html`<${Clickable} key=${value} name=${value} move=${move} look=${cls("shop-value", { chosen: option.chosen !== "" && option.chosen.toLowerCase() === value.toLowerCase() })} />`,
          )}</span></div>`,
      )}
    </div>
  </div>`;

  const TITLES = {
    search: "Search",
    description: "Description",
    features: "Features",
    reviews: "Reviews",
    attributes: "Attributes",
    done: "Receipt",
  };

  /** Fields of the receipt with their labels; the shop leaves all other fields blank. */
  const BOUGHT = { asin: "Product", options: "Options", "Your score (min 0.0, max 1.0)": "Score" };

  /** The purchase and the score; texts in an unknown format are shown unchanged. */
  const Receipt = ({ texts }) => {
    const purchased = texts.indexOf("Purchased");
    const facts = {};
    texts.slice(purchased + 1).forEach((name, i, rest) => {
      const label = BOUGHT[name];
      if (label && !(label in facts) && i + 1 < rest.length) facts[label] = rest[i + 1];
    });
    if (purchased < 0 || !facts.Product) {
      return html`<div>${texts.map((text, i) => html`<${Prose} key=${i} text=${text} most=${600} />`)}</div>`;
    }
    const chosen = parsed(facts.Options);
    const options = chosen && typeof chosen === "object" ? Object.entries(chosen).map(([name, value]) => `${name}: ${value}`).join(", ") : facts.Options;
    return html`<p><${Words} text=${texts[0]} most=${200} /></p><${coevo.Facts} value=${{ ...facts, Options: options || "none" }} label="Receipt" />`;
  };

  const parsed = (text) => {
    try {
      return JSON.parse(text);
    } catch {
      return null;
    }
  };

  const ShopPage = ({ page, action, playing }) => {
    const move = playing || moveOf(action);
    const words = move.verb === "search" ? move.what : "";
    const texts = page.texts || [];
    return html`<div class="shop" role="group" aria-label=${`Shop page: ${page.page}`}>
      <div class="shop-bar"><span class="shop-name">WebShop</span>
        ${page.buttons.map((name) => html`<${Clickable} key=${name} name=${name} move=${move} />`)}</div>
      ${page.page === "search" && html`<p class=${cls("shop-field", { taken: words })}>${words ? html`<${Words} text=${words} />` : html`<span class="soft">${playing ? "search[WORDS]" : "Search"}</span>`}</p>`}
      ${page.page === "results" && html`<${Results} page=${page} move=${move} />`}
      ${page.page === "item" && html`<${Item} page=${page} move=${move} />`}
      ${texts.length > 0 && html`<p class="shop-title">${TITLES[page.page] || page.page}</p>
        ${page.page === "done" ? html`<${Receipt} texts=${texts} />` : html`<ul class="shop-texts">${texts.map((text) => html`<li><${Prose} text=${text} most=${600} /></li>`)}</ul>`}`}
      ${page.page !== "search" && words && html`<p class="shop-field taken"><${Words} text=${words} /></p>`}
    </div>`;
  };

  const pretty = (text) => {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text; // several results, or a sentence
    }
  };

  /**
   * The page of an observation. `action` is the action taken on it; `playing` is given for the
   * current page of a user's episode: `{ choices, act, busy }`.
   */
  const BehindPage = ({ page, text, action, playing }) => {
    if (page.kind === "shop") return html`<${ShopPage} page=${page} action=${action} playing=${playing} />`;
    const json = page.format === "json" && text.length < 200000;
    return html`<${Prose} class=${page.format === "plain" ? "observation" : "observation code"} text=${json ? pretty(text) : text} most=${3000} />`;
  };

  Object.assign(coevo, { BehindPage });
})();
