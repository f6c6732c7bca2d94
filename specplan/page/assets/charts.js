// The four pictures. Each takes what was answered and draws it with Plotly; colours come from the style sheet.
import { GIB, overBatch, overOffered, planeOf } from "answers";

const settings = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
const colours = {};

/** Read the colours again, after the page turned dark or light. */
export function repaint() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "line", "ink", "soft", "draft", "plain", "mark", "weights", "cache", "room"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

export const number = (x, digits = 3) =>
  Number.isFinite(x)
    ? x.toLocaleString("en", Math.abs(x) >= 10 ** (digits - 1)
        ? { maximumFractionDigits: 0 }
        : { maximumSignificantDigits: digits })
    : "none";
export const times = (x) => `${x.toFixed(2)}×`;
const faint = (colour, alpha) => `${colour}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;

const axis = (title, more = {}) => ({
  title: { text: title, standoff: 6, font: { size: 12, color: colours.soft } },
  gridcolor: faint(colours.line, 0.7),
  linecolor: colours.line,
  tickfont: { size: 11.5, color: colours.soft },
  zeroline: false,
  fixedrange: true,
  automargin: false,
  ...more,
});

function layout(x, y, more = {}) {
  return {
    margin: { l: 52, r: 14, t: 10, b: 42 },
    paper_bgcolor: colours.paper,
    plot_bgcolor: colours.paper,
    font: { family: "system-ui, sans-serif", color: colours.ink, size: 12 },
    hoverlabel: { bgcolor: colours.paper, bordercolor: colours.line, font: { color: colours.ink, size: 12.5 }, align: "left" },
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    xaxis: x,
    yaxis: y,
    ...more,
  };
}
const drawn = {};

/** Draw what differs from what is there: nothing, the traces, the reach of the axes, or all of it. */
function draw(id, traces, view) {
  const before = drawn[id] ?? {};
  const ranges = [view.xaxis.range, view.yaxis.range];
  const now = {
    traces: JSON.stringify(traces), ranges: String(ranges), count: traces.length,
    view: JSON.stringify(view, (key, value) => (key === "range" ? undefined : value)),
  };
  drawn[id] = now;
  if (now.view !== before.view || now.count !== before.count) Plotly.react(id, traces, view, settings);
  else {
    if (now.traces !== before.traces) Plotly.animate(id, { data: traces, traces: traces.map((_, i) => i) }, AT_ONCE);
    if (now.ranges !== before.ranges) Plotly.relayout(id, { "xaxis.range": ranges[0], "yaxis.range": ranges[1] });
  }
}
const AT_ONCE = { mode: "immediate", transition: { duration: 0 }, frame: { duration: 0, redraw: false } };
const lines = (x, y, colour, more = {}) => ({
  type: "scatter", mode: "lines", x, y, line: { color: colour, width: 2 }, hoverinfo: "skip", ...more,
});
const hover = (text) => ({ hoverinfo: "text", hovertemplate: `${text}<extra></extra>` });
/** Words at points, as a trace: cheaper to move than annotations. */
const labels = (points, colour = colours.soft) => ({
  type: "scatter", mode: "markers+text", hoverinfo: "skip", cliponaxis: false,
  marker: { size: 6, opacity: 0 },
  x: points.map((p) => p.x), y: points.map((p) => p.y), text: points.map((p) => p.text),
  textposition: points.map((p) => p.at), textfont: { size: 11.5, color: colour },
});
/** The least of a row of round numbers that holds x, so that an axis moves seldom. */
const roundUp = (x) => {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 1.5, 2, 2.5, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= x * 0.9999);
};

export function drawPlane(found) {
  const top = roundUp(found.c > 0 ? Math.min(Math.max(0.05, 1.35 * found.c), Math.max(1, 1.1 * found.c)) : 0.3);
  const { contours, tie } = planeOf(found, top);
  const even = contours.filter((k) => k.speedup === 1);
  const others = contours.filter((k) => k.speedup !== 1);
  const formula = "1 + γ(E − 1) = s (1 + γ(κc + v − 1))<br>derived";
  const joined = (curves, colour, width) => {
    const all = curves.flatMap(({ speedup, points }) => [
      ...points.map((p) => ({ ...p, speedup: times(speedup) })), { alpha: null, c: null, speedup: "" },
    ]);
    return lines(all.map((p) => p.alpha), all.map((p) => p.c), colour, {
      line: { color: colour, width }, customdata: all.map((p) => p.speedup),
      ...hover(`%{customdata} at α %{x:.3f}, c %{y:.4f}<br>${formula}`),
    });
  };
  const width = document.getElementById("plane").clientWidth - 66;
  const named = (curves) => curves.map(({ speedup, points }) => {
    const last = points.reduce((a, b) => (b.c > a.c ? b : a));
    const text = speedup === 1 ? "break-even" : times(speedup).replace(/\.?0+×/, "×");
    return { x: last.alpha, y: Math.min(last.c, top), text, at: last.c > top * 0.97 && last.alpha < 0.9 ? "top center" : "top left" };
  });
  /** Whether two labels at about the same height would touch: seven pixels a letter. */
  const touch = (a, b) =>
    Math.abs(a.y - b.y) < top * 0.07 && Math.abs(a.x - b.x) * width < 3.5 * (a.text.length + b.text.length) + 6;
  const first = named(even);
  const rest = named(others).reduce((kept, one) => ([...first, ...kept].some((k) => touch(k, one)) ? kept : [...kept, one]), []);
  draw("plane", [
    joined(others, colours.plain, 1),
    joined(even, colours.ink, 2),
    labels(rest),
    labels(first, colours.ink),
    lines(tie.map((p) => p.alpha), tie.map((p) => p.c), colours.mark, {
      line: { color: colours.mark, width: 2, dash: "dot" },
      ...hover(`equal speedup, ${times(found.speedup)}<br>derived`),
    }),
    {
      type: "scatter", mode: "markers", x: tie.length ? [found.dagger] : [], y: tie.length ? [0] : [], cliponaxis: false,
      marker: { color: colours.paper, size: 9, line: { color: colours.mark, width: 2 } },
      ...hover(`α† %{x:.4f}: a free draft ties here<br>the α at which c = 0 has the same speedup<br>${found.timed}`),
    },
    {
      type: "scatter", mode: "markers", x: [found.alpha], y: [Math.min(Math.max(found.c, 0), top)], cliponaxis: false,
      marker: { color: colours.mark, size: 12 },
      ...hover(`${found.source.name}: α %{x:.3f} assumed<br>c ${number(found.c)}, ${times(found.speedup)} ${found.timed}`),
    },
  ], layout(
    axis("acceptance α", { range: [0, 1.005], dtick: 0.2 }),
    axis("draft cost c", { range: [0, top], nticks: 6 }),
    { margin: { l: 52, r: 14, t: 22, b: 42 } },
  ));
}

const logTicks = (last) => {
  const at = [1, 4, 16, 64, 256, 1024].filter((n) => n <= last * 1.01);
  return { type: "log", range: [0, Math.log10(last)], tickvals: at, ticktext: at.map(String) };
};

export function drawBatches(data, setting, at, found) {
  const band = [found.low / found.speedup, found.high / found.speedup];
  const points = overBatch(data, setting, at, band);
  const x = points.map((p) => p.batch);
  const most = roundUp(Math.max(...points.map((p) => p.high), 1.2) * 1.04);
  const held = found.plainPool.sequences;
  const formula = "s = E · t(plain) / (t(draft) + t(verify) + t(host))";
  const traces = [];
  if (found.banded) {
    traces.push(
      lines(x, points.map((p) => p.low), colours.draft, { line: { width: 0 } }),
      lines(x, points.map((p) => p.high), colours.draft, { line: { width: 0 }, fill: "tonexty", fillcolor: faint(colours.draft, 0.16) }),
    );
  }
  traces.push(
    lines(x, points.map((p) => p.speedup), colours.draft, {
      customdata: points.map((p) => (found.banded ? ` (${p.low.toFixed(2)}–${p.high.toFixed(2)})` : "")),
      ...hover(`batch %{x}: %{y:.2f}×%{customdata}<br>${formula}<br>${found.timed}`),
    }),
  );
  traces.push(lines([1, 1024], [1, 1], colours.ink, { line: { color: colours.ink, width: 1 } }));
  traces.push(labels([{ x: 1, y: 1, text: "plain decoding", at: "top right" }]));
  const from = Math.min(Math.max(held, 1), 1024);
  traces.unshift(lines([from, from, 1024, 1024], [0, most, most, 0], colours.room, {
    line: { width: 0 }, fill: "toself", fillcolor: faint(colours.room, 0.35),
  }));
  const full = { x: 1024, y: most, text: held < 1 ? "not even one request fits" : held < 1024 ? "the cache is full" : "", at: "bottom left" };
  traces.push(labels([full]), {
    type: "scatter", mode: "markers", x: [setting.batch], y: [found.speedup], cliponaxis: false,
    marker: { color: colours.mark, size: 11 },
    ...hover(`batch %{x}: %{y:.2f}×<br>${formula}<br>${found.timed}`),
  });
  draw("batches", traces, layout(
    axis("requests per step", logTicks(1024)),
    axis("speedup", { range: [0, most], nticks: 6, ticksuffix: "×" }),
  ));
}

export function drawMemory(data, found) {
  const { card } = found.on;
  const [plain, drafted] = [found.plainPool, found.draftedPool];
  const draftBytes = drafted.weights - plain.weights;
  const parts = [
    ["target's weights", [plain.weights, plain.weights], colours.weights, "resident parameters × bytes, on one card", "derived"],
    ["draft's weights", [0, draftBytes], colours.mark, "resident parameters × bytes, on one card", "derived"],
    ["workspace", [data.workspace, data.workspace], colours.plain, "activations, graphs: a round figure", "assumed"],
    ["cache", [plain.pool, drafted.pool], colours.cache, "memory × share − weights − workspace", "derived"],
    ["not the engine's", [plain, drafted].map((pool) => (pool.shortfall ? 0 : card.memory * (1 - data.utilization))), colours.room, `memory × (1 − ${data.utilization})`, "assumed"],
  ];
  const traces = parts.map(([name, bytes, colour, formula, kind]) => ({
    type: "bar", orientation: "h", y: [0, 1], x: bytes.map((b) => b / GIB), name, width: 0.52,
    marker: { color: colour, line: { color: colours.paper, width: 1 } },
    ...hover(`${name}: %{x:.2f} GiB<br>${formula}<br>${kind}`),
  }));
  traces.push(lines([0, 1, 2, 3, 4].map(() => card.memory / GIB), [-0.36, 0.36, null, 0.64, 1.36], colours.ink, {
    line: { color: colours.ink, width: 2 }, showlegend: false,
    ...hover(`memory of the card: %{x:.2f} GiB<br>as ${card.memory_seen_by} reports it<br>measured`),
  }));
  const most = Math.max(card.memory, plain.weights + data.workspace, drafted.weights + data.workspace) / GIB;
  const words = (pool) => (pool.shortfall
    ? `short of ${number(pool.shortfall / GIB)} GiB`
    : `${number(pool.sequences, 6)} whole requests, ${number(pool.tokens, 12)} tokens`);
  traces.push({
    ...labels([plain, drafted].map((pool, i) => ({ x: 0, y: i - 0.3, text: words(pool), at: "top right" })), colours.ink),
    showlegend: false,
  });
  draw("memory", traces, layout(
    axis("GiB of one card", { range: [0, most * 1.01], nticks: 7 }),
    axis("", {
      range: [1.4, -0.75], showgrid: false, tickvals: [0, 1], ticktext: ["without", "with draft"],
      tickfont: { size: 12, color: colours.ink },
    }),
    {
      barmode: "stack", showlegend: true, margin: { l: 74, r: 14, t: 4, b: 92 },
      legend: {
        orientation: "h", x: 0, xanchor: "left", y: -0.27, yanchor: "top", font: { size: 11.5 }, traceorder: "normal",
        itemclick: false, itemdoubleclick: false,
      },
    },
  ));
}

export function drawCapacity(data, setting, at, found) {
  const points = overOffered(data, setting, at, found);
  const x = points.map((p) => p.offered);
  const formula = "running requests × E / step / cards; what does not fit waits";
  const curve = (key, i, colour) =>
    lines(x, points.map((p) => p[key]), colour, {
      customdata: points.map((p) => p.running[i]),
      ...hover(`%{x} offered, %{customdata} run: %{y:,.0f} tokens/s per card<br>${formula}<br>${found.timed}`),
    });
  const last = points[points.length - 1];
  const top = roundUp(Math.max(...points.map((p) => Math.max(p.plain, p.drafted)), 1) * 1.1);
  const above = last.drafted >= last.plain;
  const far = Math.abs(last.drafted - last.plain) > top * 0.12;
  const fits = last.drafted > 0 || last.plain > 0;
  const ends = [found.plainPool.sequences, found.draftedPool.sequences].map((n) => (n >= 1 && n <= 1024 ? n : null));
  const tops = ["plain", "drafted"].map((key, i) => points.find((p) => p.offered === ends[i])?.[key] ?? null);
  draw("capacity", [
    curve("plain", 0, colours.plain),
    curve("drafted", 1, colours.draft),
    labels([{ x: 1024, y: last.drafted, text: fits ? found.source.name : "", at: above || far ? "top left" : "bottom left" }], colours.draft),
    labels([{ x: 1024, y: last.plain, text: fits ? "plain decoding" : "not even one request fits", at: above && !far && fits ? "bottom left" : "top left" }]),
    {
      type: "scatter", mode: "markers", hoverinfo: "skip", cliponaxis: false, x: ends, y: tops,
      marker: { color: colours.paper, size: 8, line: { color: colours.ink, width: 1.5 } },
    },
  ], layout(
    axis("requests offered at a time", logTicks(1024)),
    axis("tokens/s per card", { range: [0, top], nticks: 6, tickformat: "~s" }),
  ));
}
