// The calculator's formulas, as specplan.formulas and specplan.timing state them; a test holds the two against each other.

const ACTIVATION_BYTES = 2, HEAD_UNIT = 128, LOGIT_BYTES = 10, GLUE_PER_LAYER = 3, GLUE_SHARE = 0.8, LATENT_GLUE = 4;
const WIDTH_FRACTION = [[5, 0.74], [8, 0.87]];
const SAME_RATE = {"fp8-block": ["fp8"], "mxfp4": ["nvfp4"]};
const CARD_MATCH_LAUNCH_S = 20e-6, TOKEN_ID_BYTES = 4;

const infinite = (limit) => (limit === null ? Infinity : limit);

/** Linear between knots, level outside them. */
function interpolate(x, at, values) {
  if (x <= at[0]) return values[0];
  const last = at.length - 1;
  if (x >= at[last]) return values[last];
  let i = 1;
  while (at[i] < x) i += 1;
  return values[i - 1] + ((values[i] - values[i - 1]) / (at[i] - at[i - 1])) * (x - at[i - 1]);
}

const column = (pairs, i) => pairs.map((pair) => pair[i]);
const logs = (values) => values.map(Math.log);

/** E(alpha, kappa): tokens per step, the bonus or recovered one included. */
export function expectedEmitted(alpha, kappa) {
  let total = 1;
  for (let i = 0; i < kappa; i += 1) total = 1 + alpha * total;
  return total;
}

/** Experts that `tokens` tokens touch under uniform routing. */
export function expertsTouched(count, perToken, tokens) {
  if (tokens === 0) return 0;
  if (tokens === 1) return perToken;
  return perToken >= count ? count : -count * Math.expm1(tokens * Math.log1p(-perToken / count));
}

/** Bytes of spans [bytes per entry, limit, tokens per entry] for a context. */
export function spanBytes(spans, length) {
  let total = 0;
  for (const [size, limit, rate] of spans) {
    total += size * Math.min(rate === 1 ? length : Math.floor(length / rate), infinite(limit));
  }
  return total;
}

// --- laws of kernels ----------------------------------------------------------------------------------------------

function gemmSeconds(law, rows, outer, inner, weightBytes, bandwidth, flops) {
  if (rows <= 0) return 0;
  const read = (weightBytes + ACTIVATION_BYTES * rows * (outer + inner)) / (bandwidth * law.bandwidth_share);
  const multiplied = (2 * rows * outer * inner) / (flops * law.matmul_share);
  const along = inner * law.inner_s, p = law.power;
  let busy = (read ** p + multiplied ** p + along ** p) ** (1 / p);
  if (law.positions.length) busy *= interpolate(rows, column(law.positions, 0), column(law.positions, 1));
  return law.fixed_s + busy;
}

function attentionSeconds(law, batch, length, width, k, bandwidth, flops) {
  const moved = batch * length * k.row;
  const reached = Math.exp(interpolate(
    Math.log(Math.max(moved, 1)), logs(column(law.shares, 0)), logs(column(law.shares, 1)),
  ));
  const read = moved / (bandwidth * reached);
  const multiplied = (2 * batch * width * length * k.heads * k.dims) / (flops * law.matmul_share);
  const rows = (k.kv_heads * k.dims) / (2 * HEAD_UNIT);
  return law.fixed_s + batch * (law.request_s + law.row_s * rows) + law.token_s * length + Math.hypot(read, multiplied);
}

function latentSeconds(law, batch, length, width, size, params, row, pair, bandwidth, flops) {
  const m = batch * width;
  const weights = Math.hypot(size / (bandwidth * law.bandwidth_share), (2 * m * params) / (flops * law.matmul_share));
  const cache = Math.hypot(
    (batch * length * row) / (bandwidth * law.kv_share), (m * length * pair) / (flops * law.attention_share),
  );
  return law.fixed_s + law.request_s * batch + law.token_s * length + weights + cache;
}

function expertsSeconds(law, tokens, k, size, hidden, bandwidth, flops) {
  if (tokens <= 0) return 0;
  const touched = expertsTouched(k.experts, k.per_token, 1 + law.spread * Math.max(tokens - 1, 0));
  const read = touched * (size / (bandwidth * law.bandwidth_share) + law.expert_s);
  const multiplied = (2 * tokens * k.per_token * k.params) / (flops * law.matmul_share);
  let busy = read + multiplied + (law.row_s * tokens * k.per_token * hidden) / 1024;
  if (law.rows.length) {
    const at = Math.log((Math.max(tokens, 1e-9) * k.per_token) / k.experts);
    busy *= Math.exp(interpolate(at, logs(column(law.rows, 0)), logs(column(law.rows, 1))));
  }
  return law.fixed_s + busy;
}

function reduceSeconds(reduce, message, ranks) {
  if (ranks === 1) return 0;
  const known = Object.keys(reduce).map(Number).sort((a, b) => a - b);
  const x = Math.log(Math.max(message, 1));
  const times = known.map((n) => {
    const at = logs(column(reduce[n], 0)), seconds = logs(column(reduce[n], 1)), last = at.length - 1;
    const slope = (seconds[last] - seconds[last - 1]) / (at[last] - at[last - 1]);
    return interpolate(x, at, seconds) + slope * Math.max(x - at[last], 0);
  });
  const most = known.length - 1;
  if (ranks >= known[most]) return (Math.exp(times[most]) * Math.log2(ranks)) / Math.log2(known[most]);
  const above = known.findIndex((n) => n >= ranks);
  if (known[above] === ranks || above === 0) return Math.exp(times[above]);
  const part = Math.log(ranks / known[above - 1]) / Math.log(known[above] / known[above - 1]);
  return Math.exp((1 - part) * times[above - 1] + part * times[above]);
}

// --- a machine and its passes ----------------------------------------------------------------------------------------

/** A card under an engine with some ranks, as specplan.timing.step_time.machine resolves it. */
export function machineOf(data, cardName, engineName, tp) {
  const card = data.cards[cardName], engine = data.engines[engineName];
  return {card, engine, tp, formats: data.formats, laws: card.laws[engineName] && data.laws[card.laws[engineName]]};
}

/** Peak rate at which the card multiplies what is stored, and in which format; null without a rate. */
function arithmetic(card, stored, plain, native) {
  for (const name of native) if (stored.startsWith(name) && name in card.flops) return [card.flops[name], name];
  for (const name of [plain, "bfloat16", "float16", "float32"]) if (name in card.flops) return [card.flops[name], name];
  return null;
}

function padded(tokens, captured) {
  const t = Math.ceil(tokens - 1e-9);
  for (const [largest, step] of captured) if (t <= largest) return Math.ceil(t / step) * step;
  return t;
}

/** The roofline of a pass: the longer of reading and computing at the card's peaks. */
export function rooflineSeconds(on, model, batch, width, context) {
  const ranked = model.ranks[on.tp], shape = ranked.shape, tokens = batch * width;
  const weights = (n) => shape.dense.reduce((sum, [, size]) => sum + size, shape.head[1])
    + shape.experts.reduce((sum, [, size, count, per]) => sum + (size * expertsTouched(count, per, n)) / count, 0);
  const cache = batch * (spanBytes(ranked.read, context) + ranked.state + shape.state);
  const rate = arithmetic(on.card, model.stored, model.plain, on.engine.native);
  const read = (weights(tokens) + cache) / on.card.bandwidth;
  if (rate === null) return read;
  const ridge = (rate[0] * model.bytes_per_param) / (2 * on.card.bandwidth);
  return Math.max(read, (tokens / ridge) * (weights(1) / on.card.bandwidth));
}

/** Time of a forward pass of `width` positions for each of `batch` requests. */
export function passSeconds(on, model, batch, width, context, {scored = null, draft = false} = {}) {
  const lower = rooflineSeconds(on, model, batch, width, context);
  const shape = model.ranks[on.tp].shape;
  if (on.laws) {
    const beside = draft ? shape.layers * on.engine.draft_layer_s : 0;
    return Math.max(kernelSeconds(on, model, batch, width, context, scored) + beside, lower);
  }
  return Math.max(additiveSeconds(on, model, batch, width, context, scored, draft), lower);
}

function kernelSeconds(on, model, batch, width, context, scored) {
  const {card, laws, tp} = on, shape = model.ranks[tp].shape, bandwidth = card.bandwidth;
  const [plain] = arithmetic(card, model.plain, model.plain, ["fp8", "int8", "nvfp4", "mxfp4"]);
  const peak = (key) => card.flops[[key, ...(SAME_RATE[key] ?? [])].find((f) => f in card.flops)] ?? plain;
  const tokens = batch * width, rows = padded(tokens, on.engine.captured);
  const headRows = scored === null ? rows : Math.min(batch * Math.min(scored, width), rows);
  const gemm = (g) => {
    const [key, bits, bytes] = on.formats[g.format];
    let law = laws.gemm[key], rate = key === "int4" ? "bfloat16" : key;
    if (!law) {
      const share = (WIDTH_FRACTION.find(([most]) => bits <= most) ?? [0, 1])[1];
      law = {...laws.gemm.bfloat16, bandwidth_share: laws.gemm.bfloat16.bandwidth_share * share};
      rate = "bfloat16";
    }
    const m = g.scored ? headRows : rows;
    return g.count * gemmSeconds(law, m, g.outer, g.inner, g.outer * g.inner * bytes, bandwidth, peak(rate));
  };
  let total = 0, behind = 0, routed = 0;
  for (const k of shape.kernels) {
    if (k.is === "gemm") {
      if (k.behind) behind += gemm(k);
      else total += gemm(k);
    } else if (k.is === "attention") {
      const halved = k.row < 1.5 * k.kv_heads * k.dims, limit = infinite(k.limit);
      const names = [];
      for (const window of limit < Infinity ? ["-window", ""] : [""]) {
        if (halved) names.push(`fp8${window}`);
        names.push(`bfloat16${window}`);
      }
      const law = laws.attention[names.find((name) => name in laws.attention)];
      total += k.count * attentionSeconds(law, batch, Math.min(context, limit), width, k, bandwidth, peak("bfloat16"));
      if (k.normed) total += k.count * laws.qk_norm_s;
    } else if (k.is === "latent") {
      total += latentTotal(on, k, batch, width, context, gemm, peak("bfloat16"));
    } else if (k.is === "experts") {
      const [key, , bytes] = on.formats[k.format];
      const law = (k.gated ? null : laws.experts[`${key}-ungated`]) ?? laws.experts[key] ?? laws.experts.bfloat16;
      const own = key in laws.experts && key !== "int4" && key !== "mxfp4";
      const seconds = expertsSeconds(law, tokens, k, k.params * bytes, shape.hidden, bandwidth, peak(own ? key : "bfloat16"));
      routed += k.count * seconds;
    } else {
      const law = laws.recurrent[k.kind] ?? laws.recurrent.gated_delta_net
        ?? {fixed_s: laws.glue_s, bandwidth_share: GLUE_SHARE};
      total += k.count * (law.fixed_s + (batch * (1 + width) * k.state) / (bandwidth * law.bandwidth_share));
    }
  }
  total += routed + Math.max(behind - routed, 0);
  const logits = shape.logits / tp, norms = GLUE_PER_LAYER * shape.layers;
  total += norms * laws.glue_s + (tokens * shape.activations) / bandwidth / GLUE_SHARE;
  total += (headRows * logits * LOGIT_BYTES) / bandwidth / GLUE_SHARE;
  if (tp > 1 && laws.reduce) {
    const gathered = headRows * logits * ACTIVATION_BYTES;
    total += shape.reductions * reduceSeconds(laws.reduce, rows * shape.hidden * ACTIVATION_BYTES, tp);
    if (gathered > 0) total += reduceSeconds(laws.reduce, Math.max(gathered / 2, 1), tp);
  }
  return total;
}

function latentTotal(on, k, batch, width, context, gemm, flops) {
  const {laws} = on, bandwidth = on.card.bandwidth, length = Math.min(context, infinite(k.limit));
  const index = (batch * context * k.index) / bandwidth / GLUE_SHARE;
  const halved = k.row < 1.5 * k.numbers, key = on.formats[k.format][0];
  for (const name of [key, "bfloat16", "core"]) {
    const law = (halved ? laws.latent[`${name}-kv8`] : undefined) ?? laws.latent[name];
    if (!law) continue;
    const whole = name !== "core";
    const size = whole ? k.gemms.reduce((s, g) => s + g.outer * g.inner * on.formats[g.format][2] * g.count, 0) : 0;
    const params = whole ? k.gemms.reduce((s, g) => s + g.outer * g.inner * g.count, 0) : 0;
    const block = k.count
      * (latentSeconds(law, batch, length, width, size, params, k.row, k.pair, bandwidth, flops) + index);
    if (whole) return block;
    const own = k.gemms.reduce((s, g) => s + gemm({...g, count: k.count * g.count}), 0);
    return block + own + k.count * LATENT_GLUE * laws.glue_s;
  }
  const own = k.gemms.reduce((s, g) => s + gemm({...g, count: k.count * g.count}), 0);
  const like = {heads: k.pair / (2 * k.row), kv_heads: 1, row: k.row, dims: k.row};
  const seconds = attentionSeconds(laws.attention.bfloat16, batch, length, width, like, bandwidth, flops) + index;
  return own + k.count * LATENT_GLUE * laws.glue_s + k.count * seconds;
}

/** The additive law, for cards and engines whose kernels nobody measured. */
function additiveSeconds(on, model, batch, width, context, scored, draft) {
  const {card, engine, tp} = on, c = card.constants, ranked = model.ranks[tp], shape = ranked.shape;
  const [flops, format] = arithmetic(card, model.stored, model.plain, engine.native);
  const own = !engine.ring && card.direct;
  const latency = own ? c.collective_latency_s : (c.ring_latency_s * Math.log2(Math.max(tp, 2))) / 3;
  const widths = format === "fp8" || format === "int8" ? WIDTH_FRACTION.slice(0, 1) : WIDTH_FRACTION;
  const share = (bits) => (widths.find(([most]) => bits <= most) ?? [0, 1])[1];
  const layer = c.launch_s * (draft ? engine.draft_launch_factor : engine.launch_factor);
  const layerRequest = (c.launch_s * engine.layer_request_factor * shape.hidden) / 4096;
  const bandwidth = card.bandwidth * c.bandwidth_fraction, tokens = batch * width;
  const rows = batch * (scored === null ? width : Math.min(scored, width));
  let reading = 0;
  for (const [bits, size] of shape.dense) reading += size / (bandwidth * share(bits));
  if (shape.head[1] && rows > 0) reading += shape.head[1] / (bandwidth * share(shape.head[0]));
  for (const [bits, size, count, per] of shape.experts) {
    reading += (size * expertsTouched(count, per, tokens)) / count / (bandwidth * share(bits));
  }
  const kv = (batch * (spanBytes(ranked.read, context) + ranked.state + width * shape.state))
    / (card.bandwidth * c.kv_bandwidth_fraction);
  const rate = flops * c.matmul_fraction;
  const matmul = (2 * (tokens * shape.token_params + rows * shape.head[2])) / rate;
  const pairs = shape.attention.reduce((s, [per, limit]) => s + per * Math.min(context, infinite(limit)), 0);
  const attention = (tokens * pairs) / rate, overlap = card.family !== "cpu";
  const beyond = (read, computed) => {
    if (!overlap) return computed;
    const both = Math.hypot(read, computed) + read;
    return both > 0 ? computed ** 2 / both : 0;
  };
  let collectives = 0;
  if (tp > 1 && card.link !== null) {
    const link = card.link * c.link_fraction, part = (tp - 1) / tp;
    collectives = shape.reductions * (latency + (2 * part * tokens * shape.message) / link);
    const gathered = rows * shape.logits * ACTIVATION_BYTES;
    if (gathered > 0) collectives += latency + (part * gathered) / link;
  }
  return reading + kv + beyond(reading, matmul) + beyond(kv, attention) + (tokens * shape.activations) / bandwidth
    + (rows * shape.logits * LOGIT_BYTES) / bandwidth + collectives + shape.layers * (layer + layerRequest * batch);
}

// --- steps --------------------------------------------------------------------------------------------------------------

function hostSeconds(on, batch, drafted) {
  const e = on.engine, plain = (e.host_s ?? on.card.constants.host_s) + e.host_request_s * batch;
  return drafted ? plain + e.speculation_s + e.speculation_request_s * Math.max(batch - 1, 0) : plain;
}

function draftSeconds(on, draft, batch, kappa, context) {
  if (draft === null) return CARD_MATCH_LAUNCH_S + (batch * context * TOKEN_ID_BYTES) / on.card.bandwidth;
  const first = on.engine.draft_order === "vllm" ? kappa + 2 : kappa + 1;
  const one = passSeconds(on, draft, batch, first, context, {scored: 1, draft: true});
  const later = passSeconds(on, draft, batch, 1, context, {draft: true});
  return one + Math.max(kappa - 1, 0) * later + kappa * on.engine.draft_pass_s;
}

/** A plain step and a drafted one: seconds, tokens, c, v and the speedup. `draft` null is the engine's n-gram. */
export function step(on, target, draft, {alpha, kappa, batch, context, coverage}) {
  const plain = passSeconds(on, target, batch, 1, context) + hostSeconds(on, batch, false);
  const verify = passSeconds(on, target, batch, kappa + 1, context), host = hostSeconds(on, batch, true);
  const drafting = draftSeconds(on, draft, batch, kappa, context);
  const drafted = drafting + verify + host;
  const perDraft = expectedEmitted(alpha, kappa);
  const emitted = 1 + (draft === null ? coverage : 1) * (perDraft - 1);
  return {
    plain, drafted, drafting, verify, host, emitted,
    c: drafting / kappa / plain, v: (verify + host) / plain, speedup: (emitted * plain) / drafted,
  };
}

/** c by bytes alone: a draft pass over a target pass at the card's bandwidth, one request without a cache. */
export function derivedC(on, target, draft) {
  const bytes = (m) => {
    const shape = m.ranks[on.tp].shape;
    return shape.dense.reduce((sum, [, size]) => sum + size, shape.head[1])
      + shape.experts.reduce((sum, [, size, count, per]) => sum + (size * per) / count, 0);
  };
  return draft === null ? 0 : bytes(draft) / bytes(target);
}

/** The plain subtraction: memory times utilisation less weights and workspace, and what it holds. */
export function pool(data, on, models, length, utilization) {
  const weights = models.reduce((sum, m) => sum + m.ranks[on.tp].weights, 0);
  const left = on.card.memory * utilization - data.memory.workspace - weights;
  const per = models.reduce((sum, m) => sum + spanBytes(m.ranks[on.tp].stored, length) + m.ranks[on.tp].state, 0);
  const bytes = Math.max(left, 0);
  return {weights, bytes, short: Math.max(-left, 0), tokens: Math.floor(bytes / (per / length)),
    sequences: Math.floor(bytes / per)};
}
