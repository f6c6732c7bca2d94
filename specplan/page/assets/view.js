// Controls, figures and charts; what they show comes from laws.js alone, and all of what is asked stands in the address.
/* global Plotly */
import {derivedC, expectedEmitted, machineOf, pool, step} from "./laws.js";

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const MATCHER = "n-gram";
const BATCHES = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
const LENGTH = 8192;

// --- what is asked ----------------------------------------------------------------------------------------------------

const round = (x, digits) => Number(x.toPrecision(digits));
const SLIDERS = {
  alpha: {name: "acceptance alpha", low: 0, high: 1, step: 0.01, of: (x) => x, to: (v) => v, show: (v) => v.toFixed(2)},
  kappa: {name: "drafted tokens kappa", low: 1, high: 16, step: 1, of: (x) => x, to: (v) => v, show: String},
  batch: {name: "requests per step", low: 0, high: 9, step: 0.25, of: (x) => Math.round(2 ** x), to: Math.log2, show: String},
  context: {name: "cached tokens", low: 7, high: 17, step: 0.25, of: (x) => Math.round(2 ** x), to: Math.log2,
    show: (v) => v.toLocaleString("en")},
  coverage: {name: "coverage: steps with a draft", low: 0.05, high: 1, step: 0.01, of: (x) => x, to: (v) => v,
    show: (v) => v.toFixed(2)},
};
const asked = {target: "llama3-70b", card: "h100-sxm", tp: 4, engine: "vllm", draft: "llama3.2-1b",
  alpha: 0.7, kappa: 3, batch: 1, context: 2048, coverage: 1};

const draftsOf = () => {
  const target = data.models[asked.target];
  const models = Object.keys(data.models).filter((name) => {
    const other = data.models[name];
    return other.vocabulary === target.vocabulary && other.params < target.params / 2 && asked.tp in other.ranks;
  });
  return asked.engine === "vllm" ? [MATCHER, ...models] : models;
};
const choices = {
  target: () => Object.keys(data.models),
  card: () => Object.keys(data.cards),
  tp: () => Object.keys(data.models[asked.target].ranks).map(Number),
  engine: () => Object.keys(data.engines),
  draft: draftsOf,
};

/** Whatever was asked becomes something that can be answered; a choice that went is replaced by the first there is. */
function settle() {
  for (const name of ["target", "card", "engine", "tp", "draft"]) {
    const offered = choices[name]();
    if (name === "tp") asked.tp = Number(asked.tp);
    if (!offered.includes(asked[name])) asked[name] = offered[0] ?? null;
    if (name === "engine" && asked.engine === "sglang" && !draftsOf().length) asked.engine = "vllm";
  }
  for (const [name, s] of Object.entries(SLIDERS)) {
    const value = Number(asked[name]);
    asked[name] = Number.isFinite(value) ? Math.min(Math.max(value, s.of(s.low)), s.of(s.high)) : s.of(s.low);
  }
  asked.kappa = Math.round(asked.kappa);
  asked.batch = Math.round(asked.batch);
  asked.context = Math.round(asked.context);
}

function fromAddress() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in asked) asked[name] = value;
  settle();
}

const toAddress = () => history.replaceState(null, "", `#${new URLSearchParams(asked)}`);

// --- answers ----------------------------------------------------------------------------------------------------------

/** All figures at what is asked; the page shows nothing else. */
export function answer(q = asked) {
  const on = machineOf(data, q.card, q.engine, q.tp), target = data.models[q.target];
  const draft = q.draft === MATCHER || q.draft === null ? null : data.models[q.draft];
  const now = step(on, target, draft, q);
  const alone = on.card.memory ? pool(data, on, [target], LENGTH, data.memory.utilization) : null;
  const both = on.card.memory && draft ? pool(data, on, [target, draft], LENGTH, data.memory.utilization) : alone;
  return {...now, on, target, draft, alone, both, perDraft: expectedEmitted(q.alpha, q.kappa),
    derived: derivedC(on, target, draft)};
}

const seconds = (s) => (s >= 1e-3 ? `${round(s * 1e3, 4)} ms` : `${round(s * 1e6, 4)} us`);
const gib = (b) => `${(b / 2 ** 30).toFixed(2)} GiB`;

function figuresOf(a) {
  const band = data.cards[asked.card].band[asked.engine];
  return [
    ["speedup", `${a.speedup.toFixed(3)}x`, "modelled",
      `E x plain step / drafted step; expect ${(a.speedup * band[0]).toFixed(2)} to ${(a.speedup * band[1]).toFixed(2)}, `
      + `which rests on ${band[2]}`],
    ["E, tokens per step", round(a.emitted, 5), "derived", "1 + coverage x (alpha + ... + alpha^kappa)"],
    ["plain step", seconds(a.plain), "modelled", "the target's kernels and the engine's host time"],
    ["drafted step", seconds(a.drafted), "modelled",
      `drafting ${seconds(a.drafting)}, verifying ${seconds(a.verify)}, host ${seconds(a.host)}`],
    ["c, a draft pass", round(a.c, 4), "modelled", `drafting per token / plain step; by bytes alone ${round(a.derived, 4)}`],
    ["v, verifying", round(a.v, 4), "modelled", "verify step with its host time / plain step"],
    ["alpha to break even", breakEven(a), "modelled", "where E = (v + kappa c) at this batch"],
    ["tokens/s of the server", Math.round((asked.batch * a.emitted) / a.drafted).toLocaleString("en"), "modelled",
      "requests x E / drafted step"],
    ["requests that fit", a.both ? `${a.alone.sequences} / ${a.both.sequences}` : "unknown", "derived",
      `of ${LENGTH.toLocaleString("en")} tokens, without and with the draft: (memory x ${data.memory.utilization} - 2 GiB - `
      + "weights) / cache of one"],
    ["parameters read per token", `${round(a.target.streamed / 1e9, 5)} B`, a.target.assumed ? "assumed" : "exact",
      "matrices that every token multiplies"],
  ];
}

function breakEven(a) {
  const needed = (asked.draft === MATCHER ? (a.drafted / a.plain - 1) / asked.coverage : a.drafted / a.plain - 1) + 1;
  if (needed > asked.kappa + 1) return "none";
  let low = 0, high = 1;
  for (let i = 0; i < 60; i += 1) {
    const middle = (low + high) / 2;
    if (expectedEmitted(middle, asked.kappa) < needed) low = middle;
    else high = middle;
  }
  return high.toFixed(3);
}

// --- charts -----------------------------------------------------------------------------------------------------------

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let colours = {};
function layout(more) {
  const axis = {gridcolor: colours.line, linecolor: colours.line, zerolinecolor: colours.line, tickfont: {size: 11}};
  return {
    margin: {l: 52, r: 14, t: 10, b: 42}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: colours.soft, family: "system-ui, sans-serif", size: 12}, showlegend: false, hoverlabel: {align: "left"},
    ...more, xaxis: {...axis, ...more.xaxis}, yaxis: {...axis, ...more.yaxis},
  };
}
const OPTIONS = {displayModeBar: false, responsive: true};

function drawPlane(a) {
  const k = asked.kappa, most = Math.max(0.1, 2 * a.c), columns = 36, rows = 30;
  const x = Array.from({length: columns}, (_, i) => (most * i) / (columns - 1));
  const y = Array.from({length: rows}, (_, j) => j / (rows - 1));
  const covered = a.draft === null ? asked.coverage : 1;
  const z = y.map((alpha) => {
    const emitted = 1 + covered * (expectedEmitted(alpha, k) - 1);
    return x.map((c) => emitted / (a.v + k * c));
  });
  const scale = [[0, colours.loss], [0.5, colours.ground], [1, colours.gain]];
  const reach = Math.max(1.05, z[rows - 1][0]);
  Plotly.react("plane", [
    {type: "contour", x, y, z, colorscale: scale, zmin: 2 - reach, zmax: reach, opacity: 0.55, showscale: false,
      contours: {start: 0.5, end: Math.ceil(reach * 4) / 4, size: 0.25, showlabels: true, labelfont: {size: 10, color: colours.ink}},
      line: {width: 0.6, color: colours.soft},
      hovertemplate: "%{z:.3f}x at alpha %{y:.2f}, c %{x:.3f}<br>E / (v + kappa c), modelled<extra></extra>"},
    {type: "scatter", mode: "markers", x: [a.c], y: [asked.alpha],
      marker: {size: 13, color: colours.draft, line: {width: 2, color: colours.ground}},
      hovertemplate: `${asked.draft}: ${a.speedup.toFixed(3)}x, modelled<extra></extra>`},
  ], layout({xaxis: {title: {text: "c, a draft pass over a plain step"}}, yaxis: {title: {text: "alpha"}, range: [0, 1]}}), OPTIONS);
}

function sweep(a) {
  return BATCHES.map((batch) => step(a.on, a.target, a.draft, {...asked, batch}));
}

function drawBatch(a, swept) {
  const y = swept.map((s) => s.speedup), most = Math.max(1.2, ...y), lines = [];
  const fits = [["cache full without draft", a.alone, colours.plain], ["with draft", a.both, colours.draft]];
  for (const [, held, color] of fits) {
    if (held && held.sequences >= 1 && held.sequences <= 512) {
      lines.push({type: "line", x0: held.sequences, x1: held.sequences, yref: "paper", y0: 0, y1: 1, line: {color, dash: "dot", width: 1.5}});
    }
  }
  lines.push({type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: {color: colours.soft, width: 1}});
  Plotly.react("batch-chart", [
    {type: "scatter", mode: "lines", x: BATCHES, y, line: {color: colours.draft, width: 2.5},
      hovertemplate: "%{y:.3f}x at %{x} requests<br>E x plain step / drafted step, modelled<extra></extra>"},
    {type: "scatter", mode: "markers", x: [asked.batch], y: [a.speedup],
      marker: {size: 12, color: colours.draft, line: {width: 2, color: colours.ground}}, hoverinfo: "skip"},
  ], layout({shapes: lines,
    xaxis: {type: "log", title: {text: "requests per step (dotted: where the cache is full)"}, range: [0, Math.log10(512)],
      tickvals: [1, 4, 16, 64, 256]},
    yaxis: {title: {text: "speedup"}, range: [0, most * 1.1]}}), OPTIONS);
}

function drawMemory(a) {
  const card = a.on.card;
  if (!card.memory) {
    Plotly.react("memory", [], layout({annotations: [{text: "the card's memory is not known", showarrow: false}]}), OPTIONS);
    return;
  }
  const names = ["with draft", "without"], spare = card.memory * (1 - data.memory.utilization);
  const own = a.target.ranks[asked.tp].weights, drafts = a.draft ? a.draft.ranks[asked.tp].weights : 0;
  const parts = [
    ["target's weights", [own, own], colours.plain, "exact"], ["draft's weights", [drafts, 0], colours.loss, "exact"],
    ["workspace", [data.memory.workspace, data.memory.workspace], colours.line, "assumed"],
    ["cache", [a.both.bytes, a.alone.bytes], colours.draft, "derived"], ["not used", [spare, spare], "rgba(127,127,127,.18)", "assumed"],
  ];
  Plotly.react("memory", parts.map(([name, sizes, color, kind]) => ({
    type: "bar", orientation: "h", name, y: names, x: sizes.map((s) => s / 2 ** 30), marker: {color},
    hovertemplate: `${name}: %{x:.2f} GiB, ${kind}<extra></extra>`,
  })), layout({barmode: "stack", showlegend: true, legend: {orientation: "h", y: -0.28, font: {size: 11}},
    margin: {l: 74, r: 14, t: 10, b: 64},
    annotations: [a.both, a.alone].map((held, i) => ({y: names[i], x: 1, xref: "paper", xanchor: "right", yshift: 34,
      showarrow: false, text: `${held.sequences.toLocaleString("en")} requests, ${held.tokens.toLocaleString("en")} tokens`})),
    xaxis: {title: {text: "GiB per rank"}}, yaxis: {}}), OPTIONS);
}

function drawCapacity(a, swept) {
  const curve = (held, rate) => BATCHES.map((batch, i) => ({batch, x: rate(swept[i]), y: batch * rate(swept[i])}))
    .filter(({batch}) => !held || batch <= Math.max(held.sequences, 1));
  const plain = curve(a.alone, (s) => 1 / s.plain), drafted = curve(a.both, (s) => s.emitted / s.drafted);
  const trace = (points, name, color) => ({type: "scatter", mode: "lines+markers", name, x: points.map((p) => p.x),
    y: points.map((p) => p.y), text: points.map((p) => p.batch), line: {color, width: 2}, marker: {size: 5},
    hovertemplate: `${name}, %{text} requests: %{y:,.0f} tokens/s, %{x:.1f} a user<br>requests x E / step, modelled<extra></extra>`});
  Plotly.react("capacity", [trace(plain, "plain", colours.plain), trace(drafted, "drafted", colours.draft)],
    layout({showlegend: true, legend: {x: 1, xanchor: "right", y: 1, font: {size: 11}},
      xaxis: {title: {text: "tokens/s of a user"}, rangemode: "tozero"}, yaxis: {title: {text: "tokens/s of the server"}, rangemode: "tozero"}}), OPTIONS);
}

// --- the page ---------------------------------------------------------------------------------------------------------

function say(a) {
  const pays = a.speedup > 1, verdict = at("verdict");
  verdict.className = pays ? "pays" : "loses";
  const fits = a.both && asked.batch > a.both.sequences ? " The cache does not hold so many." : "";
  const none = a.alone && a.alone.short > 0 ? " The weights do not fit." : "";
  verdict.innerHTML = "";
  const strong = document.createElement("strong");
  strong.textContent = `${a.speedup.toFixed(2)}x`;
  verdict.append(strong, ` ${pays ? "speculation pays" : "speculation does not pay"}: ${asked.target} with ${asked.draft}, `
    + `kappa ${asked.kappa}, ${asked.batch} at a time on ${asked.tp} x ${asked.card}.${none || fits}`);
  at("notes").textContent = data.cards[asked.card].notes[asked.engine].join("; ");
  const draft = a.draft ? `--draft ${asked.draft}` : `--source ngram:alpha=${asked.alpha},coverage=${asked.coverage}`;
  at("command").textContent = `specplan cost ${asked.target} ${draft} --gpu ${asked.card} --tp ${asked.tp} `
    + `--engine ${asked.engine} -b ${asked.batch} --context ${asked.context} -k ${asked.kappa} --alpha ${asked.alpha}`;
}

function showFigures(a) {
  const box = at("figures"), rows = figuresOf(a);
  if (box.children.length !== rows.length) {
    box.replaceChildren(...rows.map(() => {
      const div = document.createElement("div");
      div.className = "figure";
      div.tabIndex = 0;
      div.innerHTML = '<span class="kind"></span><span class="name"></span><b></b><span class="tip" role="tooltip"></span>';
      return div;
    }));
  }
  rows.forEach(([name, value, kind, formula], i) => {
    const [kindAt, nameAt, valueAt, tip] = box.children[i].children;
    kindAt.textContent = kind;
    nameAt.textContent = name;
    valueAt.textContent = value;
    tip.textContent = `${formula} (${kind})`;
  });
}

function controls() {
  for (const name of Object.keys(choices)) {
    const box = at(name), offered = choices[name]().map(String), shown = Array.from(box.options, (o) => o.value);
    if (offered.join() !== shown.join()) box.replaceChildren(...offered.map((value) => new Option(value)));
    box.value = String(asked[name]);
  }
  for (const [name, s] of Object.entries(SLIDERS)) {
    const input = at(name);
    if (document.activeElement !== input) input.value = s.to(asked[name]);
    input.setAttribute("aria-valuetext", s.show(asked[name]));
    at(`${name}-value`).textContent = s.show(asked[name]);
  }
  at("coverage").disabled = asked.draft !== MATCHER;
}

const seen = new Set(["plane", "batch-chart", "memory", "capacity"]);
let stale = new Set();
/** Draw what is asked: figures at once, charts as far as they are on the screen. */
export function draw() {
  controls();
  const a = answer();
  say(a);
  showFigures(a);
  const swept = seen.has("batch-chart") || seen.has("capacity") ? sweep(a) : null;
  const charts = {"plane": () => drawPlane(a), "batch-chart": () => drawBatch(a, swept), "memory": () => drawMemory(a),
    "capacity": () => drawCapacity(a, swept)};
  stale = new Set();
  for (const [name, paint] of Object.entries(charts)) {
    if (seen.has(name)) paint();
    else stale.add(name);
  }
  toAddress();
}

let waiting = false;
function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "light" : "dark";
  at("theme").setAttribute("aria-pressed", String(name === "dark"));
  colours = Object.fromEntries(["ground", "ink", "soft", "line", "draft", "plain", "gain", "loss"].map((c) => [c, css(`--${c}`)]));
}

function start() {
  at("sliders").append(...Object.entries(SLIDERS).map(([name, s]) => {
    const div = document.createElement("div");
    div.className = "slider";
    div.innerHTML = `<label for="${name}"><span>${s.name}</span><output id="${name}-value" for="${name}"></output></label>`
      + `<input id="${name}" type="range" min="${s.low}" max="${s.high}" step="${s.step}">`;
    return div;
  }));
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  fromAddress();
  for (const name of Object.keys(choices)) {
    at(name).addEventListener("change", (event) => {
      asked[name] = event.target.value;
      settle();
      later();
    });
  }
  for (const [name, s] of Object.entries(SLIDERS)) {
    at(name).addEventListener("input", (event) => {
      asked[name] = s.of(Number(event.target.value));
      later();
    });
  }
  at("theme").addEventListener("click", () => {
    theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    draw();
  });
  addEventListener("hashchange", () => {
    fromAddress();
    draw();
  });
  draw();
  const watch = new IntersectionObserver((entries) => {
    for (const {target, isIntersecting} of entries) {
      if (isIntersecting) seen.add(target.id);
      else seen.delete(target.id);
    }
    if ([...stale].some((name) => seen.has(name))) later();
  }, {rootMargin: "120px"});
  for (const name of ["plane", "batch-chart", "memory", "capacity"]) watch.observe(at(name));
}

start();
globalThis.specplan = {answer, asked, data, draw, machineOf, pool, settle, step};
