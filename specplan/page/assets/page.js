// Controls, address and words: reads the setting, asks for the figures, has them drawn.
import { answer, commandOf, draftsOf, GIB, placed } from "answers";
import { drawBatches, drawCapacity, drawMemory, drawPlane, number, repaint, times } from "charts";

const $ = (id) => document.getElementById(id);

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

const spread = (first, last) => {
  const found = [];
  for (let n = first; n <= last; n *= 2) found.push(n, n * 1.5);
  return found.filter((n) => n <= last && Number.isInteger(n));
};
const evenly = (last, by) => Array.from({ length: last / by + 1 }, (_, i) => Number((i * by).toFixed(4)));
const SLIDERS = {
  alpha: { words: "Acceptance α, assumed", values: evenly(1, 0.01), shown: (x) => x.toFixed(2), least: 0, most: 1 },
  kappa: { words: "Drafted tokens κ", values: Array.from({ length: 16 }, (_, i) => i + 1), shown: String, least: 1, most: 64, whole: true },
  batch: { words: "Requests per step", values: [1, ...spread(2, 1024)], shown: (x) => number(x, 6), least: 1, most: 1024, whole: true },
  context: { words: "Context, tokens", values: spread(128, 262144), shown: (x) => number(x, 9), least: 1, most: 1048576, whole: true },
  coverage: { words: "Coverage γ, assumed", values: evenly(1, 0.05).slice(1), shown: (x) => `${Math.round(x * 100)}%`, least: 0.01, most: 1 },
};
const SELECTS = ["target", "draft", "card", "tp", "engine", "layer"];
const FIRST = {
  target: "llama3-70b", draft: "llama3.2-1b", card: "h100-sxm", tp: 4, engine: "vllm", layer: "modelled",
  alpha: 0.7, kappa: 3, batch: 1, context: 2048, coverage: 1,
};

let data;
let setting = { ...FIRST };
let waiting = 0;

/** What was asked and cannot be had, in words: shown until a figure is pointed at. */
let replaced = [];
const replace = (of, name, by) => {
  replaced.push(`${name} ${of[name]} cannot be had here: shown is ${by}.`);
  of[name] = by;
};

/** The setting that the address holds; what it does not name is as at first, and what it names wrongly is told. */
function fromAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const found = { ...FIRST };
  for (const name of Object.keys(FIRST)) if (Object.hasOwn(given, name)) found[name] = given[name];
  found.tp = Number(found.tp);
  for (const [name, { least, most, whole }] of Object.entries(SLIDERS)) {
    const value = Number(found[name]);
    if (value >= least && value <= most && (!whole || Number.isInteger(value))) found[name] = value;
    else replace(found, name, FIRST[name]);
  }
  const layers = { modelled: true, roofline: true };
  for (const [name, among] of Object.entries({ target: data.models, card: data.cards, engine: data.engines, layer: layers })) {
    if (!Object.hasOwn(among, found[name])) replace(found, name, FIRST[name]);
  }
  return found;
}

let noting = 0;
/** Browsers refuse an address that changes too often: it is written once the sliders rest. */
function toAddress() {
  const parts = Object.keys(FIRST).map((name) => [name, String(setting[name])]);
  clearTimeout(noting);
  noting = setTimeout(() => history.replaceState(null, "", `#${new URLSearchParams(parts)}`), 200);
}

function fill(select, options, chosen) {
  const groups = new Map();
  for (const [value, words, group = ""] of options) {
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(new Option(words, value, false, String(value) === String(chosen)));
  }
  select.replaceChildren(...[...groups].flatMap(([name, found]) => {
    if (!name) return found;
    const group = document.createElement("optgroup");
    group.label = name;
    group.append(...found);
    return [group];
  }));
}

/** What the selects offer, and where the sliders stand; a choice that a new target rules out moves to the nearest one. */
function showSetting() {
  const ranks = Object.keys(data.models[setting.target].ranks).map(Number);
  if (!ranks.includes(setting.tp)) replace(setting, "tp", ranks.filter((n) => n <= setting.tp).pop() ?? ranks[0]);
  const drafts = draftsOf(data, setting);
  if (!drafts.some(([value]) => value === setting.draft)) replace(setting, "draft", "ngram");
  fill($("target"), Object.keys(data.models).map((name) => [name, name]), setting.target);
  fill($("draft"), drafts, setting.draft);
  const cards = Object.entries(data.cards).map(([name, card]) => [name, name, card.vendor]);
  fill($("card"), cards.sort((a, b) => a[2].localeCompare(b[2])), setting.card);
  fill($("tp"), ranks.map((n) => [n, String(n)]), setting.tp);
  fill($("engine"), Object.entries(data.engines).map(([name, e]) => [name, `${name} (${e.version})`]), setting.engine);
  $("layer").value = setting.layer;
  for (const name of Object.keys(SLIDERS)) showSlider(name);
  if (replaced.length) $("told").textContent = replaced.join(" ");
  replaced = [];
}

function showSlider(name) {
  const { values, shown } = SLIDERS[name];
  const input = $(name);
  const distance = (x) => Math.abs(Math.log(Math.max(x, 1e-3) / Math.max(setting[name], 1e-3)));
  if (values[input.value] !== setting[name]) {
    input.value = values.reduce((best, x, i) => (distance(x) < distance(values[best]) ? i : best), 0);
  }
  input.setAttribute("aria-valuetext", shown(setting[name]));
  $(`${name}-shown`).value = shown(setting[name]);
}

function buildSliders() {
  for (const [name, { words, values }] of Object.entries(SLIDERS)) {
    const label = document.createElement("label");
    label.innerHTML =
      `<span>${words}</span><output id="${name}-shown" for="${name}"></output>` +
      `<input type="range" id="${name}" min="0" max="${values.length - 1}" step="1" aria-label="${words}">`;
    $("sliders").append(label);
    $(name).addEventListener("input", (event) => {
      setting[name] = values[event.target.value];
      showSlider(name);
      redraw();
    });
  }
  for (const name of SELECTS) {
    $(name).addEventListener("change", (event) => {
      setting[name] = name === "tp" ? Number(event.target.value) : event.target.value;
      showSetting();
      redraw();
    });
  }
}

const ms = (seconds) => `${number(seconds * 1e3, 4)} ms`;

/** [name, value, kind, formula] of each figure. */
function figuresOf(found) {
  const { timed, plainPool: plain, draftedPool: drafted, source } = found;
  const band = found.banded ? `${found.low.toFixed(2)}–${found.high.toFixed(2)}, ${timed}` : timed;
  const lost = plain.tokens ? `${((1 - drafted.tokens / plain.tokens) * 100).toFixed(1)}%` : "none fits";
  const matching = source.shape ? "" : ", with what matching takes";
  return [
    ["speedup", times(found.speedup), band, "E · t(plain) / (t(draft) + t(verify) + t(host)); the ends hold four of five published rows that nothing was fitted to"],
    ["E, tokens a step", found.tokens.toFixed(3), "derived", "1 + γ (α + α² + … + α^κ), from the assumed α and γ"],
    ["c, drafting", number(found.c, 4), timed, "t(draft) / (κ · t(plain))"],
    ["v, verifying", number(found.v, 4), timed, `(t(verify) + t(host)) / t(plain), per drafted step${matching}`],
    ["α to break even", Number.isFinite(found.breakEven) ? found.breakEven.toFixed(4) : "none", timed, "the α at which E = the cost of a step: speedup 1"],
    ["α†, a free tie", Number.isFinite(found.dagger) ? found.dagger.toFixed(4) : "none", timed, "the α at which a draft of c = 0 has the same speedup"],
    ["plain step", ms(found.plain), timed, `a pass of one position per request, and the host: ${found.on.layer}`],
    ["drafted step", ms(found.step), timed, `draft ${ms(found.draft)} + verify ${ms(found.verify)} + host ${ms(found.host)}`],
    ["tokens/s per card", number(found.rate, 4), timed, "B · E / step / cards, if all B requests fit"],
    ["verified positions", number(found.positions * found.batch, 6), "derived", `B (κ + 1); the ridge of this target and card is ${found.ridge === null ? "unknown" : number(found.ridge, 4)}`],
    ["cache lost", lost, "derived", "1 − tokens with the draft / tokens without, by plain subtraction"],
    ["whole requests", `${number(plain.sequences, 6)} → ${number(drafted.sequences, 6)}`, "derived", "cache of a card / bytes of one request of this context; block-exact figures: specplan blocks"],
  ];
}

function showFigures(found) {
  const rows = figuresOf(found);
  const list = $("figures");
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(() => {
      const item = document.createElement("li");
      item.tabIndex = 0;
      item.innerHTML = '<span class="name"></span><span class="value"></span><span class="kind"></span>';
      for (const event of ["pointerenter", "focus", "click"]) item.addEventListener(event, () => ($("told").textContent = item.dataset.told));
      return item;
    }));
  }
  rows.forEach(([name, value, kind, formula], i) => {
    const item = list.children[i];
    [name, value, kind].forEach((text, j) => (item.children[j].textContent = text));
    item.dataset.told = `${name}: ${value}, ${kind}. ${formula}.`;
    item.setAttribute("aria-description", formula);
  });
}

function sentenceOf(found) {
  const { card, tp, target, batch, engine } = setting;
  const where = `${target} on ${tp} × ${card}, ${engine}, batch ${number(batch, 6)}`;
  if (found.draftedPool.shortfall) {
    const who = found.plainPool.shortfall ? "the target" : "the target with its draft";
    return `${where}: ${who} does not fit: ${number((found.plainPool.shortfall || found.draftedPool.shortfall) / GIB)} GiB per card are missing.`;
  }
  const bound = found.on.layer === "roofline" ? " at the roofline, which leaves launches and host time out" : "";
  const lost = found.plainPool.sequences - found.draftedPool.sequences;
  const price = lost > 0
    ? ` It takes the room of ${number(lost, 6)} of ${number(found.plainPool.sequences, 6)} requests.`
    : " It takes no room from the cache.";
  const held = found.draftedPool.sequences;
  const wait = held < batch ? ` The cache holds ${number(held, 6)} of ${number(batch, 6)}: the rest wait.` : "";
  return `${where}: ${found.source.name} ${found.verdict}, ${times(found.speedup)}${bound}.${price}${wait}`;
}

function captions(found) {
  const even = Number.isFinite(found.breakEven) ? `It breaks even at α ${found.breakEven.toFixed(3)}` : "No α breaks even";
  const tie = Number.isFinite(found.dagger) ? `; a free draft ties at ${found.dagger.toFixed(3)}` : "";
  $("plane-text").textContent = `${found.source.name} at α ${setting.alpha.toFixed(2)}, c ${number(found.c)}: ${times(found.speedup)}. ${even}${tie}.`;
  const held = found.plainPool.sequences;
  $("batches-text").textContent = `${times(found.speedup)} at batch ${setting.batch}${found.banded ? `, between ${found.low.toFixed(2)} and ${found.high.toFixed(2)}` : ""}. ${held ? `The cache holds ${number(held, 6)} requests of this context` : "No request of this context fits"}.`;
  const [plain, drafted] = [found.plainPool, found.draftedPool];
  $("memory-text").textContent = `Cache without the draft ${number(plain.pool / GIB)} GiB, with it ${number(drafted.pool / GIB)} GiB; each cached token takes ${number(((drafted.perSequence / plain.perSequence) - 1) * 100)}% more.`;
  $("capacity-text").textContent = `Throughput when requests queue for room: ${number(plain.sequences, 6)} run at once without the draft, ${number(drafted.sequences, 6)} with it.`;
}

function showNotes() {
  const on = data.cards[setting.card].engines[setting.engine];
  const e = data.engines[setting.engine];
  const modelled = [
    on.times_from, ...on.notes, ...(setting.tp > 1 ? on.notes_of_ranks : []),
    `${e.name} ${e.version}: ${e.source}`, `the band of a speedup rests on ${on.band[2]}`,
  ];
  const roofline = ["a pass takes the longer of reading and computing at the datasheet's peaks; launches, collectives, sampling and host time are left out"];
  const lines = [
    ...(setting.layer === "roofline" ? roofline : modelled),
    "α and γ are as given: every position is accepted with the same conditional probability",
    `memory: ${data.utilization} of what ${data.cards[setting.card].memory_seen_by} reports, 2 GiB of workspace, by plain subtraction; an engine's own blocks: specplan blocks`,
    "not counted: prefills that share steps, requests of different contexts, slots that drafts reserve, pipeline and expert parallelism",
  ];
  if (setting.draft.startsWith("head:")) lines.push("the head is one layer of the target's shape, not a trained checkpoint's");
  $("command").textContent = commandOf(setting);
  const limit = data.models[setting.target].max_position;
  if (limit && setting.context > limit) lines.unshift(`this context is beyond the ${number(limit, 9)} that ${setting.target} states`);
  $("notes").querySelector("ul").replaceChildren(...lines.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

function drawAll() {
  waiting = 0;
  const at = placed(data, setting);
  const found = answer(data, setting);
  document.body.classList.toggle("problem", Boolean(found.problem));
  if (found.problem) {
    $("sentence").textContent = found.problem;
  } else {
    $("sentence").textContent = sentenceOf(found);
    showFigures({ ...found, batch: setting.batch });
    captions(found);
    drawPlane(found);
    drawBatches(data, setting, at, found);
    drawMemory(data, found);
    drawCapacity(data, setting, at, found);
    showNotes();
  }
  toAddress();
}
const redraw = () => (waiting ||= requestAnimationFrame(drawAll));

const THEMES = [["", "Auto", "as the system has them"], ["light", "Light", "light"], ["dark", "Dark", "dark"]];
function colour() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.findIndex(([name]) => name === (root.dataset.theme ?? "")) + 1) % THEMES.length];
  if (next[0]) root.dataset.theme = next[0];
  else delete root.dataset.theme;
  $("theme").textContent = next[1];
  $("theme").setAttribute("aria-label", `Colours: ${next[2]}`);
  repaint();
  redraw();
}

function restore() {
  setting = fromAddress();
  showSetting();
  drawAll();
}

data = await unpacked($("data").textContent);
repaint();
buildSliders();
restore();
$("theme").addEventListener("click", colour);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (repaint(), redraw()));
addEventListener("hashchange", restore);
// For the console, and for the test that compares with Python.
globalThis.specplan = { answer: (given) => answer(data, { ...FIRST, ...given }), drawAll, command: (given) => commandOf({ ...FIRST, ...given }), drafts: (given) => draftsOf(data, { ...FIRST, ...given }), data, setting: () => setting };
