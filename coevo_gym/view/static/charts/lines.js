// Line charts, with intervals as bands and evolution rounds as ticks below the axis.
"use strict";

(() => {
  const { given } = coevo;
  const { kinds, write, tick, interval, cellOf, intervalCell, INTERVAL, textWidth, shorten, look, marked, domainOf, ticksOf, axisX, axisY, plot, tips } = coevo.charts;

  /** Maximum number of points of a line that are marked individually. */
  const MOST_MARKS = 60;
  /** Height of a lane of ticks in pixels. */
  const LANE = 9;

  const known = (point) => given(point.x) && given(point.y);
  const styled = (spec) => spec.series.map((one, i) => ({ ...one, style: one.style ?? i }));

  /**
   * Properties of the kind "lines":
   *   series  [{label, points: [{x, y, low, high, href}], style, bold, steps, unmarked}]: `bold`
   *           emphasises the main series, `steps` keeps a value constant until the next point,
   *           `unmarked` draws no marks at the points
   *   x, y    axes; `x.axis` is the format of the ticks (default: "compact")
   *   rounds  [{label, style, at: [x]}]: ticks below the horizontal axis
   *   band    what the bands are, unless they are 95 % intervals
   */
  kinds.lines = {
    empty: ({ series }) => !series.some(({ points }) => points.some(known)),

    parts: (spec) => styled(spec).map(({ label, style }) => ({ label, style, sample: "line" })),

    table: ({ series, x, y, band }) => {
      const banded = series.some(({ points }) => points.some(({ low }) => given(low)));
      return {
        head: ["", x.label, y.label, ...(banded ? [band ? { ...INTERVAL, text: band } : INTERVAL] : [])],
        rows: series.flatMap(({ label, points }) =>
          points.map((point) => [
            { text: label, href: point.href },
            cellOf(x.format || "count", point.x),
            cellOf(y.format, point.y),
            ...(banded ? [intervalCell(y.format, point)] : []),
          ]),
        ),
      };
    },

    draw: (spec, width, hidden) => {
      const all = styled(spec);
      const shown = all.filter(({ label }) => !hidden.has(label));
      shown.sort((a, b) => Boolean(a.bold) - Boolean(b.bold));
      const rounds = (spec.rounds || []).filter(({ label, at }) => at.length && !hidden.has(label));
      const points = all.flatMap((one) => one.points);
      const xs = [...points.map(({ x }) => x), ...(spec.rounds || []).flatMap(({ at }) => at)].filter(given);
      const x = spec.x.domain || [Math.min(0, ...d3.extent(xs)), Math.max(d3.max(xs), 1e-9)];
      const y = domainOf(points.flatMap((point) => [point.y, point.low, point.high]), spec.y);
      const lanes = rounds.length * LANE;
      const xTicks = ticksOf(x, Math.max(2, Math.min(8, width / 90)), spec.x.format || "count");
      const yTicks = ticksOf(y, 5, spec.y.format);
      const toTell = shown.flatMap((one) =>
        one.points.filter(known).map((point) => ({ ...point, tip: () => tipOf(spec, one, point) })),
      );
      return plot({
        width,
        height: (spec.height || 270) + lanes,
        marginLeft: 14 + d3.max(yTicks, (value) => textWidth(tick(spec.y.format, value), 11)),
        marginTop: 26,
        marginRight: 16,
        marginBottom: 44 + lanes,
        x: { domain: x },
        y: { domain: y },
        marks: [
          Plot.gridY(yTicks),
          Plot.axisY(yTicks, axisY(spec.y.label, { tickFormat: (value) => tick(spec.y.format, value) })),
          Plot.axisX(
            xTicks,
            axisX(spec.x.label, {
              tickFormat: (value) => tick(spec.x.axis || "compact", value),
              tickPadding: 7 + lanes,
              labelOffset: 37 + lanes,
            }),
          ),
          Plot.ruleY([Math.max(0, y[0])], { stroke: "var(--chart-soft)" }),
          shown.map((one) => line(one, x[1], shown.length)),
          rounds.map((round, i) => lane(round, 8 + LANE * i)),
          tips(toTell, { x: "x", y: "y" }),
        ],
      });
    },
  };

  /** The marks of a series: its band, line and points. */
  const line = (one, right, lines) => {
    const { colour, dash } = look(one.style);
    const drawn = one.points.filter(known);
    const last = drawn[drawn.length - 1];
    const path = one.steps && last ? [...one.points, { x: right, y: last.y }] : one.points;
    const banded = drawn.filter(({ low, high }) => given(low) && given(high));
    const value = (name) => (point) => (given(point[name]) ? point[name] : NaN);
    return [
      banded.length > 1 &&
        Plot.areaY(one.points, {
          x: "x", y1: value("low"), y2: value("high"), fill: colour, fillOpacity: lines > 4 ? 0.08 : 0.15,
        }), // prettier-ignore
      banded.length === 1 && Plot.ruleX(banded, { x: "x", y1: "low", y2: "high", stroke: colour, strokeWidth: 1.8 }),
      Plot.line(path, {
        x: "x", y: value("y"), stroke: colour, strokeWidth: one.bold ? 2.6 : 1.8, strokeDasharray: dash,
        curve: one.steps ? "step-after" : "linear",
      }), // prettier-ignore
      ((one.points.length <= MOST_MARKS && !one.unmarked) || drawn.length === 1) &&
        Plot.dot(drawn, { x: "x", y: "y", r: 3.6, href: "href", ...marked(one.style) }),
    ].filter(Boolean);
  };

  const TICK = {
    draw: (path) => {
      path.moveTo(0, -3.5);
      path.lineTo(0, 3.5);
    },
  };

  /** Ticks in a lane below the axis. */
  const lane = ({ style = 0, at }, dy) =>
    Plot.dot(at, {
      x: (value) => value, frameAnchor: "bottom", dy, symbol: TICK, r: 4, stroke: look(style).colour,
      strokeWidth: 1.6, className: "chart-lane",
    }); // prettier-ignore

  const tipOf = (spec, { label }, point) => {
    const ends = given(point.low) && given(point.high) ? `(${interval(spec.y.format, point)})` : "";
    const at = write(spec.x.format || "count", point.x);
    const [unit, remark] = spec.x.label.split(", "); // "env steps, including exploration"
    const where = remark ? `${at} ${unit}` : `${unit}: ${at}`;
    return [shorten(label, 230), `${spec.y.label}: ${write(spec.y.format, point.y)}`, ends, where]
      .filter(Boolean)
      .join("\n");
  };
})();
