// Keyboard shortcuts. Components register keys while they are shown, and the help dialog lists them.
// In input fields, only Escape is a shortcut.
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
   * Handle keys while a component is shown; the latest component has priority.
   *
   * @param keys objects `{key, does, run}`: the key's name in the browser, its description (keys
   *   without one are not listed), and the function; it returns `false` to pass the key on.
   * @param alone true to block the keys of all other components, as in a dialog.
   */
  coevo.useKeys = (keys, { alone = false } = {}) => {
    const layer = useRef({ keys, alone });
    layer.current = { keys, alone };
    useLayoutEffect(() => { // before the page is painted, so that no key comes too early
      layers.push(layer);
      return () => layers.splice(layers.indexOf(layer), 1);
    }, []);
  };

  /** The active keys, for the help dialog. */
  coevo.keysNow = () => {
    const seen = new Set();
    return [...layers]
      .reverse()
      .flatMap((layer) => layer.current.keys)
      .filter(({ key, does }) => does && !seen.has(key) && seen.add(key));
  };
})();
