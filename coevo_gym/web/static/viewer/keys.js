// The keyboard. A component says which keys it listens to while it is shown; the help overlay
// lists them. Keys that are typed into a field stay with the field, but Escape.
"use strict";

(() => {
  const { useLayoutEffect, useRef } = coevo;
  const layers = [];

  const inField = (target) =>
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

  window.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (inField(event.target) && event.key !== "Escape") return;
    for (let i = layers.length - 1; i >= 0; i--) {
      const found = layers[i].current.keys.find(({ key }) => key === event.key);
      if (found && found.run(event) !== false) {
        event.preventDefault();
        return;
      }
      if (layers[i].current.alone) return;
    }
  });

  coevo.inField = inField;

  /**
   * Listen to keys while a component is shown; the one that came last is asked first.
   *
   * @param keys objects `{key, does, run}`: the key as the browser names it, what it does in words
   *   (without them the help does not list it), and the function; `false` from it passes the key on.
   * @param alone whether nothing beneath hears of a key meanwhile, as under a dialog.
   */
  coevo.useKeys = (keys, { alone = false } = {}) => {
    const layer = useRef({ keys, alone });
    layer.current = { keys, alone };
    useLayoutEffect(() => { // before the page is painted, so that no key comes too early
      layers.push(layer);
      return () => layers.splice(layers.indexOf(layer), 1);
    }, []);
  };

  /** The keys that do something now, for the help. */
  coevo.keysNow = () => {
    const seen = new Set();
    return [...layers]
      .reverse()
      .flatMap((layer) => layer.current.keys)
      .filter(({ key, does }) => does && !seen.has(key) && seen.add(key));
  };
})();
