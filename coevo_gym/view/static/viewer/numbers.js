// Formats of numbers, shares, times and counts, the same on every page.
"use strict";

(() => {
  const NONE = "–";
  const NARROW = "\u202f";
  const given = (value) => typeof value === "number" && Number.isFinite(value);

  /** 1234.5 as "1,235", or a dash if the number is missing. */
  const count = (value) => (given(value) ? Math.round(value).toLocaleString("en") : NONE);

  /** A number with a fixed count of decimals; ties are rounded to the even digit. */
  const fixed = (value, digits) => {
    const up = value.toFixed(digits);
    const exact = value.toFixed(digits + 50);
    if (!/^50*$/.test(exact.slice(-50))) return up;
    const down = exact.slice(0, digits ? -50 : -51);
    return Number(down.at(-1)) % 2 ? up : down;
  };

  /** A share in [0, 1] as "48.3 %". */
  const percent = (share, digits = 1) =>
    given(share) ? `${fixed(100 * share, digits)}${NARROW}%` : NONE;

  /** A number with a fixed count of decimals, or a dash if it is missing. */
  const decimal = (value, digits = 2) => (given(value) ? fixed(value, digits) : NONE);

  /** A number with its sign: "+0.87", "−0.20", "0.00". */
  const signed = (value, digits = 2) =>
    given(value) ? `${value < 0 ? "−" : value > 0 ? "+" : ""}${fixed(Math.abs(value), digits)}` : NONE;

  /** A probability, with enough digits to distinguish it from 0 and 1. */
  const probability = (value) => {
    if (!given(value)) return NONE;
    if (value > 0 && value < 0.001) return `<${NARROW}0.1${NARROW}%`;
    return percent(value, value < 0.1 ? 1 : 0);
  };

  /** Seconds as "8 ms", "42 s", "3 min 20 s" or "2 h 05 min". */
  const duration = (seconds) => {
    if (!given(seconds)) return NONE;
    if (seconds < 0.1) return `${Math.ceil(1000 * seconds)}${NARROW}ms`;
    if (seconds < 10) return `${seconds.toFixed(1)}${NARROW}s`;
    if (seconds < 100) return `${Math.round(seconds)}${NARROW}s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 100) return `${minutes}${NARROW}min ${Math.round(seconds % 60)}${NARROW}s`;
    return `${Math.floor(minutes / 60)}${NARROW}h ${String(minutes % 60).padStart(2, "0")}${NARROW}min`;
  };

  /** "1 task", "12 tasks". */
  const plural = (n, noun, many = `${noun}s`) => `${count(n)} ${n === 1 ? noun : many}`;

  /** The first characters of a long id, such as a hash. */
  const brief = (id, most = 12) => (id && id.length > most ? id.slice(0, most) : id || NONE);

  /** Any JSON value as one readable line. */
  const inline = (value) => {
    if (value === null || value === undefined || value === "") return NONE;
    if (given(value)) return Number.isInteger(value) ? count(value) : String(+value.toFixed(4));
    if (typeof value === "boolean") return value ? "yes" : "no";
    return typeof value === "string" ? value : JSON.stringify(value);
  };

  /** `{a: {b: 1}}` as `[["a.b", 1]]`: the leaves of a JSON value with their paths. */
  const leaves = (value, prefix = "") => {
    const nested = value && typeof value === "object";
    const simple = Array.isArray(value) && value.every((item) => item === null || typeof item !== "object");
    if (!nested || simple || !Object.keys(value).length) return [[prefix, value]];
    return Object.entries(value).flatMap(([name, inner]) =>
      leaves(inner, prefix ? `${prefix}.${name}` : name),
    );
  };

  Object.assign(coevo, {
    NONE, NARROW, given, count, fixed, percent, decimal, signed, probability, duration, plural, brief, inline, leaves,
  }); // prettier-ignore
})();
