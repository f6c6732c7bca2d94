// From a setting to figures: which shapes, cards and laws it names, what follows, and what each figure is.
import { contourAlpha, contourC, plainPool, priced, ridge, step } from "laws";

export const GIB = 2 ** 30;
export const MATCHERS = { free: "a free draft", ngram: "n-gram", "ngram-host": "n-gram on the host", suffix: "suffix decoding" };
export const HEADS = { eagle: "EAGLE head", eagle3: "EAGLE-3 head", mtp: "own MTP layer" };
const BATCHES = [...new Set(Array.from({ length: 61 }, (_, i) => Math.round(2 ** (i / 6))))];
const LEVELS = [0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8];

/** What may draft for a target under an engine: [value, words, group]. */
export function draftsOf(data, { target, engine }) {
  const model = data.models[target];
  const matchers = Object.entries(MATCHERS)
    .filter(([kind]) => data.engines[engine].name !== "sglang" || ["free", "ngram"].includes(kind))
    .map(([kind, words]) => [kind, words, "without weights"]);
  const heads = Object.keys(model.heads).map((kind) => [`head:${kind}`, HEADS[kind], "heads of the target's shape (assumed)"]);
  const smaller = Object.entries(data.models)
    .filter(([, m]) => m.streamed_bytes < model.streamed_bytes)
    .sort(([, a], [, b]) => a.streamed_bytes - b.streamed_bytes);
  const of = (same) => smaller.filter(([, m]) => (m.vocabulary === model.vocabulary) === same);
  return [
    ...matchers,
    ...heads,
    ...of(true).map(([name]) => [name, name, "models of its vocabulary size"]),
    ...of(false).map(([name]) => [name, name, "models of another vocabulary"]),
  ];
}

function sourceOf(data, { target, draft, tp }) {
  if (draft in MATCHERS) return { kind: draft, name: MATCHERS[draft] };
  if (draft.startsWith("head:")) {
    const kind = draft.slice(5);
    return { kind, name: HEADS[kind], shape: data.models[target].heads[kind]?.[tp], ownHead: false };
  }
  return { kind: "model", name: draft, shape: data.models[draft]?.ranks[tp], ownHead: true };
}

const machines = {};

/** The machine, target and source of a setting, or a sentence that says why there is none. */
export function placed(data, setting) {
  const { target, card, engine, tp, layer } = setting;
  const [model, found, runs] = [data.models[target], data.cards[card], data.engines[engine]];
  const unknown = [[target, model], [card, found], [engine, runs]].find(([, value]) => !value);
  if (unknown) return { problem: `${unknown[0]} is not among what this page holds.` };
  if (!draftsOf(data, setting).some(([value]) => value === setting.draft)) {
    return { problem: `${setting.draft} does not draft for ${target} under ${engine}: choose another draft.` };
  }
  const shape = model.ranks[tp];
  if (!shape) return { problem: `${target} cannot be split over ${tp} cards.` };
  const source = sourceOf(data, setting);
  if (!(setting.draft in MATCHERS) && !source.shape) {
    return { problem: `${source.name} cannot be split over ${tp} cards.` };
  }
  const index = runs.kernels ? (found.laws[runs.kernels] ?? Object.values(found.laws)[0]) : undefined;
  const name = `${card} ${engine} ${layer}`;
  const laws = index === undefined ? null : data.laws[index];
  const on = (machines[name] ??= { card: found, engine: runs, layer, laws });
  const rated = [shape, source.shape].every(
    (s) => !s || [s.weight_format, "bfloat16", "float16", "float32"].some((name) => name in found.flops),
  );
  if (!rated) return { problem: `The profile of ${card} has no matmul rate for these weights.` };
  return { on, shape, source };
}

/** verdict: the roofline leaves out what weighs most on drafts, so it never says that one pays. */
function verdictOf(layer, low, high) {
  if (high < 1) return "does not pay";
  return layer !== "roofline" && low > 1 ? "pays" : "may or may not pay";
}

/** The same question on the command line. */
export function commandOf({ target, draft, card, engine, tp, layer, alpha, kappa, batch, context, coverage }) {
  const spelled = `${draft.replace("head:", "")}:alpha=${alpha},k=${kappa}${coverage < 1 ? `,coverage=${coverage}` : ""}`;
  return (
    `specplan compare ${target} --gpu ${card} --tp ${tp} --engine ${engine} --layer ${layer} ` +
    `--batch ${batch} --context ${context} --source ${spelled}`
  );
}

/** Every figure of a setting, in base units; `problem` where it has none. */
export function answer(data, setting) {
  const at = placed(data, setting);
  if (at.problem) return at;
  const { on, shape, source } = at;
  const { kappa, alpha, coverage, context, card, engine, tp } = setting;
  const found = step(data, on, shape, source, setting);
  const { c, v } = priced(found, source, setting);
  const chain = { kappa, v, coverage, always: found.always };
  const [low, high] = on.layer === "roofline" ? [1, 1] : data.cards[card].engines[engine].band;
  const plain = plainPool(data, on.card, [shape], context);
  const drafted = source.shape ? plainPool(data, on.card, [shape, source.shape], context) : plain;
  return {
    ...found,
    ...chain,
    c,
    alpha,
    source,
    on,
    tp,
    low: found.speedup * low,
    high: found.speedup * high,
    banded: on.layer !== "roofline",
    breakEven: contourAlpha(c, 1, chain),
    dagger: contourAlpha(0, found.speedup, chain),
    ridge: ridge(data, on, shape),
    rate: setting.batch / (found.step / found.tokens) / tp,
    plainPool: plain,
    draftedPool: drafted,
    verdict: verdictOf(on.layer, found.speedup * low, found.speedup * high),
    timed: on.layer === "roofline" ? "derived" : "modelled",
  };
}

/** Speedup over batch with the ends of its band. */
export function overBatch(data, setting, { on, shape, source }, [low, high]) {
  return BATCHES.map((batch) => {
    const { speedup } = step(data, on, shape, source, { ...setting, batch });
    return { batch, speedup, low: speedup * low, high: speedup * high };
  });
}

/** Tokens per second and card over offered requests: each runs what its pool holds, the rest waits. */
export function overOffered(data, setting, { on, shape, source }, found) {
  const fits = [found.plainPool.sequences, found.draftedPool.sequences];
  const offered = [...new Set([...BATCHES, ...fits.filter((n) => n > 0 && n <= 1024)])].sort((a, b) => a - b);
  const rate = (running, drafted) => {
    if (running < 1) return 0;
    const { plain, step: whole, tokens } = step(data, on, shape, source, { ...setting, batch: running });
    return running / (drafted ? whole / tokens : plain) / setting.tp;
  };
  return offered.map((n) => ({
    offered: n,
    plain: rate(Math.min(n, fits[0]), false),
    drafted: rate(Math.min(n, fits[1]), true),
    running: fits.map((fit) => Math.min(n, fit)),
  }));
}

/** Contours of equal speedup on the plane up to a c of `top`, and the indifference curve from the point to c = 0. */
export function planeOf(found, top) {
  const { alpha, speedup } = found;
  const curve = (s, from, to) => {
    const ends = [contourAlpha(0, s, found), contourAlpha(top, s, found)].filter((a) => a >= from && a <= to);
    const grid = [...Array.from({ length: 101 }, (_, i) => from + ((to - from) * i) / 100), ...ends];
    const points = [...new Set(grid)].sort((x, y) => x - y).map((a) => ({ alpha: a, c: contourC(a, s, found) }));
    return points.filter((p) => p.c >= -1e-9 && p.c <= top * (1 + 1e-9));
  };
  const contours = LEVELS.map((s) => ({ speedup: s, points: curve(s, 0, 1) })).filter((k) => k.points.length > 2);
  const dagger = found.dagger;
  const tie = Number.isFinite(dagger) && dagger < alpha ? curve(speedup, dagger, alpha) : [];
  return { contours, tie };
}
