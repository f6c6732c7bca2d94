// The formulas of specplan once more: what a step takes, what it emits, what the memory holds. Seconds and bytes.
// Each function names the Python one that it must equal; tests/page compares the two.

const interp = (x, points, X = (v) => v, Y = X) => {
  // numpy.interp over pairs, beyond the ends the end's value.
  const last = points.length - 1;
  if (x <= X(points[0][0])) return Y(points[0][1]);
  if (x >= X(points[last][0])) return Y(points[last][1]);
  let i = 1;
  while (X(points[i][0]) < x) i += 1;
  const [x0, x1, y0, y1] = [X(points[i - 1][0]), X(points[i][0]), Y(points[i - 1][1]), Y(points[i][1])];
  return y0 + ((y1 - y0) / (x1 - x0)) * (x - x0);
};
const sum = (values) => values.reduce((a, b) => a + b, 0);
const limited = (x, limit) => (limit === null ? x : Math.min(x, limit));

// ---- tokens and speedup (formulas/emitted, speedup, indifference)

/** expected_emitted: 1 + alpha + ... + alpha^kappa. */
export function emitted(alpha, kappa) {
  let total = 1;
  for (let i = 0; i < kappa; i += 1) total = total * alpha + 1;
  return total;
}

/** emitted_over_all_steps. */
export const overAllSteps = (coverage, perDraft) => 1 + coverage * (perDraft - 1);

/** alpha_for_emitted: Newton on 1/E from below; NaN where no alpha in [0, 1] gives e. */
export function alphaForEmitted(e, kappa) {
  const rounding = 8 * Number.EPSILON;
  if (!(e >= 1 - rounding && e <= (kappa + 1) * (1 + rounding) && kappa > 0)) return NaN;
  const target = Math.min(Math.max(e, 1), kappa + 1);
  let a = Math.max(1 - 1 / target, (target - 1) / kappa);
  for (let step = 1, i = 0; i < 60 && Math.abs(step) > 4e-16; i += 1) {
    let [value, rise] = [1, 0];
    for (let j = 0; j < kappa; j += 1) [rise, value] = [rise * a + value, value * a + 1];
    step = ((target - value) / rise) * (value / target);
    a = Math.min(Math.max(a + step, 0), 1);
  }
  return a;
}

/** The c at which an acceptance gives a speedup of s; below 0 where even a free draft is too slow. */
export const contourC = (alpha, s, { kappa, v, coverage, always }) => {
  const drafting = always ? 1 : coverage;
  return ((overAllSteps(coverage, emitted(alpha, kappa)) / s - 1) / drafting + 1 - v) / kappa;
};

/** The alpha at which a source of cost c has a speedup of s; NaN where none does. */
export const contourAlpha = (c, s, { kappa, v, coverage, always }) => {
  const drafting = always ? 1 : coverage;
  return alphaForEmitted(1 + (s * (1 + drafting * (kappa * c + v - 1)) - 1) / coverage, kappa);
};

// ---- kernels (formulas/kernels, pass_kernels)

/** experts_touched under uniform routing. */
export function expertsTouched(count, perToken, tokens) {
  if (tokens === 0) return 0;
  return tokens === 1 ? perToken : -count * Math.expm1(tokens * Math.log1p(-perToken / count));
}

function gemmSeconds(law, rows, outer, inner, weightBytes, bandwidth, flops, activationBytes) {
  if (rows <= 0) return 0;
  const read = (weightBytes + activationBytes * rows * (outer + inner)) / (bandwidth * law.bandwidth_share);
  const multiplied = (2 * rows * outer * inner) / (flops * law.matmul_share);
  const parts = [read, multiplied, inner * law.inner_s];
  const busy = law.power === 2 ? Math.hypot(...parts) : sum(parts.map((t) => t ** law.power)) ** (1 / law.power);
  return law.fixed_s + busy * (law.positions.length ? interp(rows, law.positions) : 1);
}

function attentionSeconds(law, at, length, heads, kvHeads, rowBytes, headDims, bandwidth, flops, unit) {
  const moved = at.batch * length * rowBytes;
  const share = Math.exp(interp(Math.log(Math.max(moved, 1)), law.shares, Math.log));
  const multiplied = (2 * at.batch * at.width * length * heads * headDims) / (flops * law.matmul_share);
  const busy = Math.hypot(moved / (bandwidth * share), multiplied);
  const rows = (kvHeads * headDims) / (2 * unit);
  return law.fixed_s + at.batch * (law.request_s + law.row_s * rows) + law.token_s * length + busy;
}

function latentSeconds(law, at, length, weightBytes, params, rowBytes, pairFlops, bandwidth, flops) {
  const m = at.batch * at.width;
  const weights = Math.hypot(
    weightBytes / (bandwidth * law.bandwidth_share),
    (2 * m * params) / (flops * law.matmul_share),
  );
  const cache = Math.hypot(
    (at.batch * length * rowBytes) / (bandwidth * law.kv_share),
    (m * length * pairFlops) / (flops * law.attention_share),
  );
  return law.fixed_s + law.request_s * at.batch + law.token_s * length + weights + cache;
}

function expertsSeconds(law, tokens, count, perToken, bytes, params, hidden, bandwidth, flops) {
  if (tokens <= 0) return 0;
  const touched = expertsTouched(count, perToken, 1 + law.spread * Math.max(tokens - 1, 0));
  const read = touched * (bytes / (bandwidth * law.bandwidth_share) + law.expert_s);
  const multiplied = (2 * tokens * perToken * params) / (flops * law.matmul_share);
  const busy = read + multiplied + (law.row_s * tokens * perToken * hidden) / 1024;
  const rows = Math.log((Math.max(tokens, 1e-9) * perToken) / count);
  return law.fixed_s + busy * (law.rows.length ? Math.exp(interp(rows, law.rows, Math.log)) : 1);
}

function reduceSeconds(law, messageBytes, ranks) {
  const known = Object.keys(law.ranks).map(Number).sort((a, b) => a - b);
  const x = Math.log(Math.max(messageBytes, 1));
  const at = (n) => {
    const points = law.ranks[n];
    const [[x0, y0], [x1, y1]] = points.slice(-2).map(([a, b]) => [Math.log(a), Math.log(b)]);
    return interp(x, points, Math.log) + ((y1 - y0) / (x1 - x0)) * Math.max(x - x1, 0);
  };
  const most = known[known.length - 1];
  if (ranks >= most) return (Math.exp(at(most)) * Math.log2(ranks)) / Math.log2(most);
  const above = known.findIndex((n) => n >= ranks);
  if (known[above] === ranks || above === 0) return Math.exp(at(known[above]));
  const below = known[above - 1];
  const part = Math.log(ranks / below) / Math.log(known[above] / below);
  return Math.exp((1 - part) * at(below) + part * at(known[above]));
}

/** Engine.padded: the next recorded size. */
function padded(engine, tokens) {
  const t = Math.ceil(tokens - 1e-9);
  const size = engine.captured.find(([largest]) => t <= largest);
  return size ? Math.ceil(t / size[1]) * size[1] : t;
}

/** The sum of the kernels of a pass by their laws (step_time._kernels), seconds. */
function kernelSeconds(data, on, shape, at) {
  const { laws, card } = on;
  const k = data.kernels;
  const { bandwidth } = card;
  const plain = arithmetic(data.native, shape.weight_format, shape.weight_format, card);
  const peak = (key) => card.rates[key] ?? plain[0];
  const rows = padded(on.engine, at.batch * at.width);
  const headRows = at.scored === null ? rows : Math.min(at.batch * Math.min(at.scored, at.width), rows);
  const tokens = at.batch * at.width;

  const gemm = (g, format = g.format) => {
    const [key, bits, bytes] = format;
    let law = laws.gemm[key];
    let rate = key === "int4" || law === undefined ? "bfloat16" : key;
    if (law === undefined) {
      const share = data.width_fraction.find(([most]) => bits <= most)?.[1] ?? 1;
      law = { ...laws.gemm.bfloat16, bandwidth_share: laws.gemm.bfloat16.bandwidth_share * share };
      rate = "bfloat16";
    }
    const size = g.outer * g.inner * bytes;
    const m = g.scored ? headRows : rows;
    return g.count * gemmSeconds(law, m, g.outer, g.inner, size, bandwidth, peak(rate), k.ACTIVATION_BYTES);
  };
  const times = {
    Gemm: (g) => gemm(g),
    AttentionKernel(a) {
      const halved = a.row_bytes < 1.5 * a.kv_heads * a.head_dims;
      const names = (a.limit === null ? [""] : ["-window", ""]).flatMap((w) =>
        (halved ? ["fp8", "bfloat16"] : ["bfloat16"]).map((kv) => kv + w),
      );
      const law = laws.attention[names.find((name) => name in laws.attention)];
      const length = limited(at.context, a.limit);
      const flops = peak("bfloat16");
      const one = attentionSeconds(
        law, at, length, a.heads, a.kv_heads, a.row_bytes, a.head_dims, bandwidth, flops, k.HEAD_UNIT,
      );
      return a.count * (one + (a.normed ? laws.qk_norm_s : 0));
    },
    LatentKernel(l) {
      const length = limited(at.context, l.limit);
      const index = (at.batch * at.context * l.index_bytes) / bandwidth / k.GLUE_SHARE;
      const halved = l.row_bytes < 1.5 * l.row_numbers;
      let [law, whole] = [undefined, false];
      for (const [name, has] of [[l.format[0], true], ["bfloat16", true], ["core", false]]) {
        law ??= (halved ? laws.latent[`${name}-kv8`] : undefined) ?? laws.latent[name];
        if (law !== undefined) {
          whole = has;
          break;
        }
      }
      const flops = peak("bfloat16");
      let total = 0;
      if (law !== undefined) {
        const size = whole ? sum(l.gemms.map((g) => g.outer * g.inner * g.format[2] * g.count)) : 0;
        const params = whole ? sum(l.gemms.map((g) => g.outer * g.inner * g.count)) : 0;
        total += latentSeconds(law, at, length, size, params, l.row_bytes, l.pair_flops, bandwidth, flops) + index;
      }
      if (whole) return l.count * total;
      total += sum(l.gemms.map((g) => gemm(g))) + k.LATENT_GLUE * laws.glue_s;
      if (law !== undefined) return l.count * total;
      const heads = l.pair_flops / (2 * l.row_bytes);
      const core = attentionSeconds(
        laws.attention.bfloat16, at, length, heads, 1, l.row_bytes, l.row_bytes, bandwidth, flops, k.HEAD_UNIT,
      );
      return l.count * (total + core + index);
    },
    ExpertsKernel(e) {
      const key = e.format[0];
      const law =
        (e.gated ? undefined : laws.experts[`${key}-ungated`]) ?? laws.experts[key] ?? laws.experts.bfloat16;
      const flops = peak(key in laws.experts && key !== "int4" && key !== "mxfp4" ? key : "bfloat16");
      const size = e.expert_params * e.format[2];
      return (
        e.count *
        expertsSeconds(law, tokens, e.experts, e.per_token, size, e.expert_params, shape.hidden, bandwidth, flops)
      );
    },
    RecurrentKernel(r) {
      const law = laws.recurrent[r.mixer] ??
        laws.recurrent.gated_delta_net ?? { fixed_s: laws.glue_s, bandwidth_share: k.GLUE_SHARE };
      const moved = at.batch * (1 + at.width) * r.state_bytes;
      return r.count * (law.fixed_s + moved / (bandwidth * law.bandwidth_share));
    },
  };
  let [total, routed, behind] = [0, 0, 0];
  for (const kernel of shape.kernels) {
    const seconds = times[kernel.kind](kernel);
    if (kernel.hidden_behind) behind += seconds;
    else total += seconds;
    if (kernel.kind === "ExpertsKernel") routed += seconds;
  }
  total += Math.max(behind - routed, 0);
  const logits = shape.logits / shape.tp;
  total += k.GLUE_PER_LAYER * shape.layers * laws.glue_s;
  total += (tokens * shape.activation_bytes + headRows * logits * k.LOGIT_BYTES) / bandwidth / k.GLUE_SHARE;
  if (shape.tp > 1 && laws.reduce !== null) {
    const gathered = headRows * logits * k.ACTIVATION_BYTES;
    total += shape.all_reduces * reduceSeconds(laws.reduce, rows * shape.hidden * k.ACTIVATION_BYTES, shape.tp);
    if (gathered > 0) total += reduceSeconds(laws.reduce, Math.max(gathered / 2, 1), shape.tp);
  }
  return total;
}

// ---- passes (formulas/step, timing/roofline, timing/step_time)

/** arithmetic_flops: [FLOP/s, format], null where the card has no rate that fits. */
function arithmetic(native, storedAs, weightFormat, card) {
  const fast = native.find((name) => storedAs.startsWith(name) && name in card.flops);
  if (fast) return [card.flops[fast], fast];
  const other = [weightFormat, "bfloat16", "float16", "float32"].find((name) => name in card.flops);
  return other === undefined ? null : [card.flops[other], other];
}

/** Bytes of spans at a length, per request (kv_cache.Span.bytes). */
const spanBytes = (spans, length) =>
  sum(spans.map(([bytes, limit, rate]) => bytes * limited(rate === 1 ? length : Math.floor(length / rate), limit)));

/** pass_load, as far as times need it. */
function passLoad(data, shape, at) {
  const tokens = at.batch * at.width;
  const rows = at.batch * (at.scored === null ? at.width : Math.min(at.scored, at.width));
  const weights = shape.dense_bytes.map(([bits, bytes]) => [bits, bytes]);
  if (shape.head_bytes) weights.push([shape.head_bits, rows > 0 ? shape.head_bytes : 0]);
  for (const g of shape.experts) {
    const touched = expertsTouched(g.count, g.per_token, tokens) / g.count;
    weights.push([g.payload_bits, g.bytes_per_rank * touched]);
  }
  const cache = spanBytes(shape.read, at.context) + shape.recurrent_bytes;
  const pairs = sum(shape.attention.map((s) => s.flops_per_pair * limited(at.context, s.limit)));
  return {
    weights,
    weightBytes: sum(weights.map(([, bytes]) => bytes)),
    kvBytes: at.batch * (cache + at.width * shape.state_bytes),
    activationBytes: tokens * shape.activation_bytes,
    logitBytes: rows * shape.logits * data.kernels.LOGIT_BYTES,
    matmulFlops: 2 * (tokens * shape.token_params + rows * shape.head_params),
    attentionFlops: tokens * pairs,
    messageBytes: tokens * shape.message_bytes,
    gatherBytes: rows * shape.logits * data.kernels.ACTIVATION_BYTES,
  };
}

/** ridge: positions at which multiplying takes as long as reading; null without a rate. */
export function ridge(data, on, shape) {
  const rate = arithmetic(on.engine.native, shape.stored_as, shape.weight_format, on.card);
  return rate === null ? null : (rate[0] / on.card.bandwidth) * (shape.bytes_per_parameter / 2);
}

/** roofline_s. */
function rooflineSeconds(data, on, shape, at) {
  const one = passLoad(data, shape, { batch: 1, width: 1, context: 0, scored: null });
  const load = passLoad(data, shape, { ...at, scored: null });
  const cache = passLoad(data, shape, { ...at, width: 1, scored: null }).kvBytes;
  const border = ridge(data, on, shape);
  const computed =
    border === null ? 0 : ((at.batch * at.width) / border) * (one.weightBytes / on.card.bandwidth);
  return Math.max((load.weightBytes + cache) / on.card.bandwidth, computed);
}

/** pass_terms with pass_rates: the additive law of a card whose kernels nobody measured. */
function additiveSeconds(data, on, shape, at, draft) {
  const { card, engine } = on;
  const c = card.calibration;
  const [flops, format] = arithmetic(engine.native, shape.stored_as, shape.weight_format, card);
  const load = passLoad(data, shape, at);
  const whole = format === "fp8" || format === "int8" ? data.width_fraction.slice(0, 1) : data.width_fraction;
  const bandwidth = card.bandwidth * (c.bandwidth_fraction || 1);
  const factor = (bits) => whole.find(([most]) => bits <= most)?.[1] ?? 1;
  const overlap = card.family !== "cpu";
  const beyond = (read, multiplied) => {
    if (!overlap) return multiplied;
    const both = Math.hypot(read, multiplied) + read;
    return both > 0 ? multiplied ** 2 / both : 0;
  };
  const reading = sum(load.weights.map(([bits, bytes]) => bytes / (bandwidth * factor(bits))));
  const cache = load.kvBytes / (card.bandwidth * (c.kv_bandwidth_fraction || 1));
  const rate = flops * (c.matmul_fraction || 1);
  let total = reading + cache + beyond(reading, load.matmulFlops / rate) + beyond(cache, load.attentionFlops / rate);
  total += (load.activationBytes + load.logitBytes) / bandwidth;
  if (shape.tp > 1 && card.link_bandwidth !== null) {
    const ring = ((c.ring_latency_s || 0) * Math.log2(Math.max(shape.tp, 2))) / 3;
    const latency = !engine.ring && card.has_links ? c.collective_latency_s || 0 : ring;
    const link = card.link_bandwidth * (c.link_fraction || 1);
    const share = (shape.tp - 1) / shape.tp;
    total += shape.all_reduces * (latency + (2 * share * load.messageBytes) / link);
    if (load.gatherBytes > 0) total += latency + (share * load.gatherBytes) / link;
  }
  const launch = c.launch_s || 0;
  const perLayer = launch * (draft ? engine.draft_launch_factor : engine.launch_factor);
  const perRequest = (launch * engine.layer_request_factor * shape.hidden) / 4096;
  return total + shape.layers * (perLayer + perRequest * at.batch);
}

const known = new WeakMap();

/** passTime of a machine and a shape, kept: most changes of a setting ask for passes that were priced before. */
export function passSeconds(data, on, shape, batch, width, context, { scored = null, draft = false } = {}) {
  if (!known.has(on)) known.set(on, new Map());
  const of = known.get(on);
  if (!of.has(shape)) of.set(shape, new Map());
  const priced = of.get(shape);
  const key = `${batch} ${width} ${context} ${scored} ${draft}`;
  if (!priced.has(key)) {
    if (priced.size > 20000) priced.clear();
    priced.set(key, passTime(data, on, shape, batch, width, context, scored, draft));
  }
  return priced.get(key);
}

/** pass_time: seconds of a pass of `width` positions for each of `batch` requests. */
function passTime(data, on, shape, batch, width, context, scored, draft) {
  const at = { batch, width, context, scored };
  const lower = rooflineSeconds(data, on, shape, at);
  if (on.layer === "roofline") return lower;
  const { engine } = on;
  const eager = draft ? engine.draft_eager_layer_s : engine.eager_layer_s;
  const beside = draft && on.laws ? shape.layers * engine.draft_layer_s : 0;
  const terms = on.laws ? kernelSeconds(data, on, shape, at) : additiveSeconds(data, on, shape, at, draft);
  return Math.max(terms + beside, shape.layers * eager, lower);
}

/** host_time: per step, outside all passes. */
function hostSeconds(on, batch, drafted) {
  if (on.layer === "roofline") return 0;
  const e = on.engine;
  const plain = (e.host_s ?? (on.card.calibration.host_s || 0)) + e.host_request_s * batch;
  return drafted ? plain + e.speculation_s + e.speculation_request_s * Math.max(batch - 1, 0) : plain;
}

/** model_draft_s of models and heads that pass once per token. */
function draftSeconds(data, on, source, batch, kappa, context, verified) {
  const { shape } = source;
  if (on.layer === "roofline") return kappa * passSeconds(data, on, shape, batch, 1, context);
  const e = on.engine;
  const width = e.draft_order === "chain" ? 1 : verified + (e.draft_order === "vllm" && source.ownHead ? 1 : 0);
  const first = passSeconds(data, on, shape, batch, width, context, { scored: 1, draft: true });
  const later = kappa > 1 ? passSeconds(data, on, shape.later ?? shape, batch, 1, context, { draft: true }) : 0;
  const outside = e.draft_pass_s + (shape.maps_vocabulary ? e.vocabulary_s : 0);
  return first + (kappa - 1) * later + kappa * outside;
}

function matcherSeconds(data, on, kind, batch, context, verifySeconds) {
  const m = data.matchers;
  if (kind === "free" || on.layer === "roofline") return 0;
  if (kind === "suffix") return m.HOST_SYNC_S + m.SUFFIX_REQUEST_S * batch;
  if (kind === "ngram-host") {
    return m.HOST_SYNC_S + m.NGRAM_CALL_S + batch * (m.NGRAM_REQUEST_S + m.NGRAM_TOKEN_S * context);
  }
  if (on.engine.draft_order === "sglang") {
    return m.HOST_SYNC_S + m.TRIE_MATCH_S * batch + Math.max(m.TRIE_INSERT_S * batch - verifySeconds, 0);
  }
  return m.CARD_MATCH_LAUNCH_S + (batch * context * m.TOKEN_ID_BYTES) / on.card.bandwidth;
}

/** Whether a step without a draft costs as much as one with it (is_padded, or a tree verified whole). */
export const draftsAlways = (on, source) =>
  on.engine.draft_order === "sglang" || source.kind === "ngram" || source.shape !== undefined;

/** step_time: a plain step, and one of the source; seconds. `source` has kind, and shape and ownHead where it passes. */
export function step(data, on, target, source, { batch, context, kappa, coverage, alpha }) {
  const plain = passSeconds(data, on, target, batch, 1, context) + hostSeconds(on, batch, false);
  const always = draftsAlways(on, source);
  const tree = on.engine.name === "sglang" && source.kind === "ngram";
  const positions = tree ? Math.max(data.sglang_nodes, kappa + 1) : 1 + (always ? 1 : coverage) * kappa;
  const verify = passSeconds(data, on, target, batch, positions, context);
  const draft = source.shape
    ? draftSeconds(data, on, source, batch, kappa, context, positions)
    : matcherSeconds(data, on, source.kind, batch, context, verify);
  const host = hostSeconds(on, batch, true);
  const tokens = overAllSteps(coverage, emitted(alpha, kappa));
  const whole = draft + verify + host;
  return {
    plain, draft, verify, host, step: whole, tokens, positions, always,
    speedup: (tokens * plain) / whole,
  };
}

/** priced: c and the verify factor with which the source costs what its step takes. */
export function priced(found, source, { kappa, coverage }) {
  const drafting = found.always ? 1 : coverage;
  if (drafting === 0) return { c: 0, v: 1 };
  const [draft, rest] = [found.draft / found.plain, (found.verify + found.host) / found.plain];
  if (!source.shape) return { c: 0, v: 1 + (draft + rest - 1) / drafting };
  return { c: draft / drafting / kappa, v: 1 + (rest - 1) / drafting };
}

// ---- memory (memory/plain)

/** plain_pool: what a rank keeps for the cache, and the tokens and whole sequences of a length in it. */
export function plainPool(data, card, shapes, length) {
  const budget = card.memory * data.utilization - data.workspace;
  const weights = sum(shapes.map((s) => s.resident_bytes));
  const perSequence = sum(shapes.map((s) => spanBytes(s.stored, length) + s.recurrent_bytes));
  const pool = Math.max(budget - weights, 0);
  return {
    weights,
    pool,
    shortfall: Math.max(weights - budget, 0),
    perSequence,
    tokens: Math.floor(pool / (perSequence / length)),
    sequences: Math.floor(pool / perSequence),
  };
}
