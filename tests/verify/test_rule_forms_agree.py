"""The two forms decide alike on random batches of every rule; one chi-square; engines' conventions."""

import numpy as np
import pytest
from scipy import stats

from specplan.errors import InputError
from specplan.verify import accept_standard

# ---- numpy and torch on the same random inputs ----------------------------------------------------------------------


def random_batch(vocab: int, batch: int, rows: int, seed: int):
    """Peaked distributions with zeros, tokens drawn from q or near p's mode, some absent; uniforms off every edge."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(vocab, 0.3), size=(batch, rows))
    q = 0.5 * p + 0.5 * rng.dirichlet(np.full(vocab, 0.3), size=(batch, rows))
    p[rng.random(p.shape) < 0.2] = 0.0
    p[..., 0] += 1e-3
    p, q = (x / x.sum(axis=-1, keepdims=True) for x in (p, q))
    tokens = np.array([[rng.choice(vocab, p=q[b, r]) for r in range(rows)] for b in range(batch)])
    return rng, p, q, tokens


CHAINS = ["accept_standard", "accept_block", "accept_one_hot", "accept_block one-hot", "accept_synthetic"]


@pytest.mark.parametrize("rule", CHAINS)
@pytest.mark.parametrize("vocab", [2, 17, 1500])
def test_chain_rules_agree(form, rule, vocab):
    rng, p, q, tokens = random_batch(vocab, 60, 6, vocab)
    q, draft = q[:, :5], np.where(rng.random((60, 5)) < 0.1, -1, tokens[:, :5])
    u = rng.random((60, 6))
    inputs = {
        "accept_standard": (p, q, draft, u),
        "accept_block": (p, q, draft, u),
        "accept_one_hot": (p, draft, u),
        "accept_block one-hot": (p, None, draft, u),
        "accept_synthetic": (p, q, draft, u),
    }[rule]
    options = {"rates": [0.9, 0.7, 0.4, 0.4, 0.1]} if rule == "accept_synthetic" else {}
    assert_same(form, rule.split()[0], inputs, options)


def assert_same(form, rule, inputs, options):
    """Same tokens, lengths, reach and overlap as the reference; float32 may turn a coin that lands within rounding."""
    import specplan.verify as reference

    expected, found = getattr(reference, rule)(*inputs, **options), form(rule, *inputs, **options)
    same = np.array([a == b for a, b in zip(expected.emitted_tokens(), found.emitted_tokens(), strict=True)])
    assert same.all() if form.name != "torch-float32" else same.mean() > 0.98
    assert (expected.drafted == found.drafted).all()
    assert (expected.reached == found.reached)[same].all()
    assert (expected.overlap is None) == (found.overlap is None)
    if expected.overlap is not None:
        assert found.overlap[same] == pytest.approx(expected.overlap[same], abs=10 * form.exact, nan_ok=True)
    if expected.nodes is not None:
        assert (expected.nodes == found.nodes)[same].all()


TREES = [
    [-1, -1, -1, 0, 0, 1, 3, 3, 3, 6],
    [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8],
    [-1] * 10,
    [-1, -1, 0, 0, 1, 1, 2, 2, 3, 3],
]


@pytest.mark.parametrize("mode", ["replacement", "without", "chosen", "sglang", "sglang thresholds", "greedy"])
@pytest.mark.parametrize("vocab", [3, 40])
def test_tree_rules_agree(form, mode, vocab):
    batch = 48
    rng, p, q, tokens = random_batch(vocab, batch, 11, vocab)
    parents = np.array([TREES[b % len(TREES)] for b in range(batch)])
    draft = np.take_along_axis(tokens, parents + 1, axis=1)
    for b in range(batch):  # a fresh token per node, from its parent's q
        draft[b] = [rng.choice(vocab, p=q[b, r]) for r in parents[b] + 1]
    draft[rng.random(draft.shape) < 0.08] = -1
    u = rng.random((batch, 12))
    if mode == "greedy":
        assert_same(form, "accept_tree_greedy", (np.round(p, 2), draft), {"parents": parents})
    elif mode.startswith("sglang"):
        options = {"threshold_single": 0.6, "threshold_acc": 0.7} if "thresholds" in mode else {}
        assert_same(form, "accept_sglang_target_only", (p, draft, u), {"parents": parents, **options})
    else:
        inputs = (p, None if mode == "chosen" else q, draft, u[:, 1:])
        assert_same(form, "accept_tree", inputs, {"parents": parents, "replacement": mode != "without"})


def test_a_tree_that_is_a_chain_is_the_standard_rule(form):
    rng, p, q, tokens = random_batch(30, 80, 5, 9)
    u = rng.random((80, 5))
    chain = form("accept_standard", p, q[:, :4], tokens[:, :4], u)
    tree = form("accept_tree", p, q, tokens[:, :4], u, parents=[-1, 0, 1, 2])
    assert tree.emitted_tokens() == chain.emitted_tokens()
    one_hot = form("accept_one_hot", p, tokens[:, :4], u)
    assert (
        form("accept_tree", p, None, tokens[:, :4], u, parents=[-1, 0, 1, 2]).emitted_tokens()
        == one_hot.emitted_tokens()
    )


# ---- one chi-square -------------------------------------------------------------------------------------------------


def test_chi_square_of_the_emitted_tokens(form):
    # Vocabulary 50, 3 drafted tokens: the first two emitted tokens of 100,000 requests. With a seed drawn at random, a
    # correct rule would fail each of the two tests with probability 1e-6; the seed is fixed, so never or always.
    false_alarm = 1e-6
    vocab, n, k = 50, 100_000, 3
    rng = np.random.default_rng(20240611)
    p = rng.dirichlet(np.full(vocab, 0.5), size=k + 1)
    q = 0.5 * p[:k] + 0.5 * rng.dirichlet(np.full(vocab, 0.5), size=k)
    # The rows do not depend on the tokens, so the emitted tokens are independent, with p[0] and p[1] for laws.
    draft = np.stack([rng.choice(vocab, size=n, p=q[i]) for i in range(k)], axis=1)
    seen = np.zeros((2, vocab))
    for rows in np.array_split(np.arange(n), 20):
        batch = len(rows)
        out = form(
            "accept_standard",
            np.broadcast_to(p, (batch, *p.shape)),
            np.broadcast_to(q, (batch, *q.shape)),
            draft[rows],
            rng.random((batch, k + 1)),
        )
        # What follows a step of one token is drawn from p again, by the next step.
        second = np.where(out.accepted > 0, out.tokens[:, 1], rng.choice(vocab, size=batch, p=p[1]))
        seen[0] += np.bincount(out.tokens[:, 0], minlength=vocab)
        seen[1] += np.bincount(second, minlength=vocab)
    for counts, law in zip(seen, p[:2], strict=True):
        expected = n * law
        big = expected >= 5
        observed = np.append(counts[big], counts[~big].sum())
        expected = np.append(expected[big], expected[~big].sum())
        observed, expected = observed[expected > 0], expected[expected > 0]
        statistic = ((observed - expected) ** 2 / expected).sum()
        assert statistic < stats.chi2.isf(false_alarm, len(expected) - 1)


# ---- vLLM's conventions ---------------------------------------------------------------------------------------------

HALF = [[[0.5, 0.5], [0.5, 0.5]]]
ZERO = [[[0.0, 1.0], [0.5, 0.5]]]
SURE = [[[1.0, 0.0], [0.5, 0.5]]]
RACE, NOISE = [[1.0, 1.0]], [[[0.0, 0.0], [0.0, 0.0]]]


def v1(form, p, q, u):
    return form("accept_vllm_v1", p, q, [[0]], [[u]], RACE, [1]).accepted.tolist()


def v2(form, p, q, u, **options):
    return form("accept_vllm_v2", p, q, [[0]], [[u]], NOISE, **options).accepted.tolist()


def test_v1_and_v2_differ_where_the_table_says(form):
    assert v1(form, HALF, None, 0.5) == [1]  # p >= u
    assert v2(form, HALF, None, 0.5) == [0]  # log p > log u
    assert v1(form, ZERO, None, 0.0) == [1]  # u = 0 lets V1 accept a token of probability 0
    assert v2(form, ZERO, None, 0.0) == [0]
    impossible = [[[0.0, 1.0]]]
    assert v1(form, HALF, impossible, 0.1) == [0]  # q = 0: V1 rejects
    assert v2(form, HALF, impossible, 0.1) == [1]
    assert form("accept_standard", HALF, impossible, [[0]], [[0.1, 0.5]]).accepted.tolist() == [1]


@pytest.mark.parametrize("block", [False, True])
def test_v2_block_and_standard_agree_for_one_token(form, block):
    q = [[[0.75, 0.25]]]
    assert v2(form, HALF, q, 0.6, block=block) == [1]
    assert v2(form, HALF, q, 0.7, block=block) == [0]
    assert v2(form, SURE, q, 0.999, block=block) == [1]


def test_v1_and_v2_race_for_the_last_token(form):
    # V1: argmax of residual / E; V2: argmax of log residual + G. Rejecting token 0 leaves tokens 1 and 2 alike.
    p, q = [[[0.2, 0.4, 0.4], [0.1, 0.2, 0.7]]], [[[1.0, 0.0, 0.0]]]
    for fast in (1, 2):
        race = [[0.001 if v == fast else 1.0 for v in range(3)]]
        noise = [[[-np.log(e) for e in race[0]], [0.0, 0.0, 0.0]]]
        assert form("accept_vllm_v1", p, q, [[0]], [[0.9]], race, [0]).emitted_tokens() == [[fast]]
        assert form("accept_vllm_v2", p, q, [[0]], [[0.9]], noise).emitted_tokens() == [[fast]]
    assert form("accept_vllm_v1", p, q, [[0]], [[0.1]], race, [1]).emitted_tokens() == [[0, 1]]
    assert form("accept_vllm_v2", p, q, [[0]], [[0.1]], noise).emitted_tokens() == [[0, 2]]


@pytest.mark.parametrize("engine", ["v1", "v2", "v2 block"])
@pytest.mark.parametrize("one_hot", [True, False])
def test_engines_accept_as_the_plain_rule_away_from_ties(form, engine, one_hot):
    rng, p, q, tokens = random_batch(40, 200, 5, 77)
    q, draft, u = (None if one_hot else q[:, :4]), tokens[:, :4], rng.random((200, 5))
    if engine == "v1":
        out = form("accept_vllm_v1", p, q, draft, u[:, :4], rng.exponential(size=(200, 40)), np.zeros(200, dtype=int))
    else:
        out = form("accept_vllm_v2", p, q, draft, u[:, :4], rng.gumbel(size=p.shape), block="block" in engine)
    if "block" in engine:
        plain = form("accept_block", p, q, draft, u)
    else:
        plain = form("accept_one_hot", p, draft, u) if one_hot else form("accept_standard", p, q, draft, u)
    assert (out.accepted == plain.accepted).all()
    for b, tokens_b in enumerate(out.emitted_tokens()):
        assert p[b, len(tokens_b) - 1, tokens_b[-1]] > 0 or engine == "v1"


def test_v1_verifies_at_most_128_tokens(form):
    p = np.full((1, 130, 2), 0.5)
    with pytest.raises(InputError, match="at most 128"):
        form("accept_vllm_v1", p, None, np.zeros((1, 129), dtype=int), np.zeros((1, 129)), RACE, [0])


# ---- SGLang's thresholds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("single", "acc", "accepted"),
    # p of the siblings: 0.2 and 0.3; the coin is 0.6.
    [(1.0, 1.0, None), (1.0, 0.5, 1), (1.0, 0.3, 0), (0.25, 1.0, 1), (0.2, 1.0, 0), (1.0, 0.0, 0)],
)
def test_sglang_thresholds_accept_more(form, single, acc, accepted):
    p = [[[0.2, 0.3, 0.5]] * 3]
    options = {"parents": [-1, -1], "threshold_single": single, "threshold_acc": acc}
    out = form("accept_sglang_target_only", p, [[0, 1]], [[0.6, 0, 0, 0.1]], **options)
    assert out.nodes.tolist() == [[-1 if accepted is None else accepted]]
    if accepted is None:
        assert out.emitted_tokens() == [[2]]


def test_sglang_thresholds_outside_0_to_1_are_named(form):
    with pytest.raises(InputError, match="threshold_acc"):
        form("accept_sglang_target_only", [[[1.0], [1.0]]], [[0]], [[0, 0, 0]], parents=[-1], threshold_acc=1.5)


def test_the_reference_is_float64_whatever_comes_in():
    out = accept_standard(np.float32([[[1, 0]] * 2]), np.float32([[[1, 0]]]), np.int32([[0]]), np.float32([[0.5, 0.5]]))
    assert (out.tokens.dtype, out.overlap.dtype) == (np.int64, np.float64)
