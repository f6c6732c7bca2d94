"""Values at the edges of what a rule may meet, on every form of every rule."""

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.verify import Outcome, Sampling

ALMOST_ONE = 1 - 2.0**-53


def chain(form, rule: str, p, q, draft, u) -> Outcome:
    """Call a rule that takes q, or one that does not."""
    inputs = (p, draft, u) if rule == "accept_one_hot" else (p, q, draft, u)
    return form(rule, *inputs)


def one_hot_rows(tokens: list[int], vocab: int) -> list[list[float]]:
    return [[1.0 if v == x else 0.0 for v in range(vocab)] for x in tokens]


CHAIN_RULES = ["accept_standard", "accept_block", "accept_one_hot"]


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("vocab", [2, 3, 256_000])
@pytest.mark.parametrize("u", [0.0, 0.5, ALMOST_ONE])
def test_first_and_last_token_are_tokens_like_any_other(form, rule, vocab, u):
    # A verifier that takes token 0 for padding, or loses the last one, fails here.
    first, last = 0, vocab - 1
    p = np.array([one_hot_rows([first, last, first], vocab), one_hot_rows([last, first, last], vocab)])
    draft = [[first, last], [last, first]]
    q = p[:, :2]
    outcome = chain(form, rule, p, q, draft, [[u] * 3] * 2)
    assert outcome.emitted_tokens() == [[first, last, first], [last, first, last]]
    rejected = chain(form, rule, p, np.roll(q, 1, axis=0), draft[::-1], [[u] * 3] * 2)
    assert rejected.emitted_tokens() == [[first], [last]]


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_equal_distributions_accept_everything_up_to_the_largest_uniform(form, rule):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(50), size=(20, 4)).astype(np.float32).astype(np.float64)
    p[:, :, 7] += 1 - p.sum(axis=-1)
    draft = rng.integers(0, 50, size=(20, 3))
    outcome = chain(form, rule, p, p[:, :3], draft, np.full((20, 4), ALMOST_ONE))
    if rule == "accept_one_hot":
        assert (outcome.accepted == 0).all()
    else:
        assert (outcome.accepted == 3).all()
        assert np.allclose(outcome.overlap, 1.0, atol=1e-5)


@pytest.mark.parametrize("rule", ["accept_standard", "accept_block"])
@pytest.mark.parametrize("u", [0.0, 0.5, ALMOST_ONE])
def test_disjoint_supports_accept_nothing_even_at_u_0(form, rule, u):
    p = [[[0.5, 0.5, 0.0, 0.0]] * 3]
    q = [[[0.0, 0.0, 0.5, 0.5]] * 2]
    outcome = form(rule, p, q, [[2, 3]], [[u] * 3])
    assert outcome.accepted.tolist() == [0]
    assert outcome.tokens[0, 0] in (0, 1)
    assert outcome.overlap[0, 0] == 0.0


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_token_of_probability_0_is_never_emitted(form, rule):
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(12), size=(400, 4))
    p[rng.random(p.shape) < 0.5] = 0.0
    p[..., 5] += 1e-9
    p /= p.sum(axis=-1, keepdims=True)
    q = rng.dirichlet(np.ones(12), size=(400, 3))
    u = rng.choice([0.0, 0.3, 1 - 1e-9, ALMOST_ONE], size=(400, 4))
    outcome = chain(form, rule, p, q, rng.integers(0, 12, size=(400, 3)), u)
    for b, tokens in enumerate(outcome.emitted_tokens()):
        assert all(p[b, i, x] > 0 for i, x in enumerate(tokens))


@pytest.mark.parametrize("rule", ["accept_standard", "accept_block"])
def test_q_of_0_at_the_drafted_token_is_the_limit_of_the_rule(form, rule):
    p = [[[0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]
    outcome = form(rule, p, [[[0.0, 1.0]]] * 2, [[0], [0]], [[ALMOST_ONE, 0.2]] * 2)
    assert outcome.accepted.tolist() == [1, 0]  # p/q infinite; 0/0


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_subnormal_mass_is_kept(form, rule):
    tiny = 2.0**-1060 if form.name != "torch-float32" else 2.0**-140
    # The residual's only mass is subnormal: it must be found, and nothing else.
    p = [[[1.0, tiny, 0.0], [0.0, 1.0, 0.0]]]
    q = [[[1.0, 0.0, 0.0]]]
    rejected = chain(form, rule, [[[0.0, tiny, 1.0], [0.0, 1.0, 0.0]]], [[[0.0, 0.0, 1.0]]], [[0]], [[0.5, 0.0]])
    assert rejected.accepted.tolist() == [0]
    assert rejected.tokens[0, 0] in (1, 2)
    outcome = chain(form, rule, p, q, [[0]], [[ALMOST_ONE, 0.0]])
    assert outcome.emitted_tokens() == [[0, 1]]
    # Drafting the token whose p is subnormal: accepted at u = 0 only.
    q = [[[0.0, 1.0, 0.0]]]
    assert chain(form, rule, p, q, [[1]], [[0.0, 0.5]]).accepted.tolist() == [1]
    assert chain(form, rule, p, q, [[1]], [[1e-30, 0.5]]).accepted.tolist() == [0]


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_ragged_batch_of_no_draft_short_drafts_and_holes(form, rule):
    vocab = 5
    p = np.array([one_hot_rows([1, 2, 3, 4], vocab)] * 5)
    draft = [[1, 2, 3], [1, 2, -1], [-1, -1, -1], [1, -1, 3], [0, 2, 3]]
    outcome = chain(form, rule, p, p[:, :3], draft, np.full((5, 4), 0.5))
    assert outcome.emitted_tokens() == [[1, 2, 3, 4], [1, 2, 3], [1], [1, 2], [1]]
    assert outcome.drafted.tolist() == [3, 2, 0, 1, 3]
    assert outcome.accepted.tolist() == [3, 2, 0, 1, 0]
    assert outcome.tested.tolist() == [3, 2, 0, 1, 1]
    assert outcome.accepted_at.tolist() == [3, 2, 1]
    assert outcome.reached_at.tolist() == [4, 2, 1]


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_batch_without_slots_samples_the_target(form, rule):
    p = np.array([[[0.25, 0.75]]] * 2)
    outcome = chain(form, rule, p, np.zeros((2, 0, 2)), np.zeros((2, 0), dtype=np.int64), [[0.2], [0.3]])
    assert outcome.emitted_tokens() == [[0], [1]]
    assert outcome.drafted.tolist() == [0, 0]


def test_a_tree_without_nodes_samples_the_target(form):
    p = np.array([[[0.25, 0.75]]] * 2)
    nothing = np.zeros((2, 0), dtype=np.int64)
    outcome = form("accept_tree", p, None, nothing, [[0.2], [0.3]], parents=[])
    assert outcome.emitted_tokens() == [[0], [1]]
    greedy = form("accept_tree_greedy", p, nothing, parents=[])
    assert greedy.emitted_tokens() == [[1], [1]]


def test_trees_with_absent_nodes_are_ragged(form):
    vocab = 4
    parents = [-1, -1, 0, 1]
    p = np.array([one_hot_rows([1, 2, 3, 0, 2], vocab)] * 4)  # after the context, nodes 0, 1, 2, 3
    draft = [[1, 2, 2, 3], [1, -1, -1, 3], [-1, 1, 2, 3], [-1, -1, -1, -1]]
    outcome = form("accept_tree", p, None, draft, np.full((4, 5), 0.5), parents=parents)
    assert outcome.emitted_tokens() == [[1, 2, 0], [1, 2], [1, 3, 2], [1]]
    assert outcome.nodes.tolist() == [[0, 2], [0, -1], [1, 3], [-1, -1]]
    assert outcome.drafted.tolist() == [4, 1, 2, 0]
    assert outcome.tested.tolist() == [2, 1, 2, 0]  # the second and third end in leaves
    greedy = form("accept_tree_greedy", p, draft, parents=parents)
    assert greedy.emitted_tokens() == outcome.emitted_tokens()
    each = form("accept_tree", p, None, draft, np.full((4, 5), 0.5), parents=np.array([parents] * 4))
    assert each.emitted_tokens() == outcome.emitted_tokens()


# ---- bad input is named ---------------------------------------------------------------------------------------------

GOOD = np.full((3, 3, 4), 0.25)


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("bad", [float("nan"), 0.5])
def test_a_bad_target_row_is_named(form, rule, bad):
    p = GOOD.copy()
    p[2, 1, 3] = bad
    with pytest.raises(InputError, match=r"target probabilities of request 2, position 1: .*"):
        chain(form, rule, p, GOOD[:, :2], np.zeros((3, 2), dtype=int), np.zeros((3, 3)))


@pytest.mark.parametrize("rule", ["accept_standard", "accept_block"])
def test_a_bad_draft_row_is_named(form, rule):
    q = GOOD[:, :2].copy()
    q[1, 0, 0] = float("nan")
    with pytest.raises(InputError, match=r"draft probabilities of request 1, position 0: NaN"):
        form(rule, GOOD, q, np.zeros((3, 2), dtype=int), np.zeros((3, 3)))


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("token", [4, -2])
def test_a_token_outside_the_vocabulary_is_named(form, rule, token):
    with pytest.raises(InputError, match=rf"request 1, position 1.*{token}.*expected a token in \[0, 4\)"):
        chain(form, rule, GOOD, GOOD[:, :2], [[0, 0], [0, token], [0, 0]], np.zeros((3, 3)))


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("u", [1.0, -0.1, float("nan")])
def test_a_uniform_outside_0_to_1_is_named(form, rule, u):
    coins = np.zeros((3, 3))
    coins[0, 2] = u
    with pytest.raises(InputError, match="uniform"):
        chain(form, rule, GOOD, GOOD[:, :2], np.zeros((3, 2), dtype=int), coins)


@pytest.mark.parametrize("rule", ["accept_greedy", "accept_tree_greedy"])
def test_a_bad_score_row_is_named(form, rule):
    scores = np.zeros((2, 3, 4))
    scores[1, 2, 0] = float("nan")
    options = {"parents": [-1, 0]} if "tree" in rule else {}
    with pytest.raises(InputError, match=r"target scores of request 1, position 2: NaN"):
        form(rule, scores, np.zeros((2, 2), dtype=int), **options)


@pytest.mark.parametrize(("parents", "message"), [([0, -1], "node 0 has parent 0"), ([-1], "parents: expected")])
def test_bad_parents_are_named(form, parents, message):
    with pytest.raises(InputError, match=message):
        form("accept_tree", GOOD, None, np.zeros((3, 2), dtype=int), np.zeros((3, 3)), parents=parents)


@pytest.mark.parametrize("name", ["p", "q", "u"])
def test_shapes_that_do_not_fit_are_named(form, name):
    inputs = {"p": GOOD, "q": GOOD[:, :2], "draft": np.zeros((3, 2), dtype=int), "u": np.zeros((3, 3))}
    inputs[name] = inputs[name][:, 1:]
    with pytest.raises(InputError, match="expected shape"):
        form("accept_standard", *inputs.values())


# ---- greedy: whatever is drafted, the target's argmax comes out -----------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, (0.0, 0.7, 0.0)])
def test_greedy_rows_of_a_mixed_batch_follow_the_argmax_under_every_rule(form, temperature):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(3, 4, 30))
    p = form.probabilities(logits, Sampling(temperature=temperature))
    best = logits.argmax(axis=-1)
    draft = best[:, :3].copy()
    draft[2, 1] = (draft[2, 1] + 1) % 30
    q = rng.dirichlet(np.ones(30), size=(3, 3))
    u = rng.random((3, 4))
    greedy = form("accept_greedy", logits, draft)
    assert greedy.emitted_tokens()[0] == best[0].tolist()
    assert greedy.emitted_tokens()[2] == best[2, :2].tolist()
    for rule in CHAIN_RULES:
        outcome = chain(form, rule, p, q, draft, u)
        for b in (0, 2):
            assert outcome.emitted_tokens()[b] == greedy.emitted_tokens()[b]
    tree = form("accept_tree", p, None, draft, u, parents=[-1, 0, 1])
    walked = form("accept_tree_greedy", logits, draft, parents=[-1, 0, 1])
    for b in (0, 2):
        assert tree.emitted_tokens()[b] == walked.emitted_tokens()[b] == greedy.emitted_tokens()[b]


def test_greedy_ties_go_to_the_lowest_token(form):
    logits = [[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]]
    assert form("accept_greedy", logits, [[1]]).emitted_tokens() == [[1, 0]]
    assert form("accept_greedy", logits, [[2]]).emitted_tokens() == [[1]]
    assert form.probabilities(logits, Sampling(temperature=0.0)).tolist() == [[[0, 1, 0], [1, 0, 0]]]


# ---- synthetic acceptance -------------------------------------------------------------------------------------------


def test_synthetic_rates_decide_lengths_and_nothing_else(form):
    # Exact integration: the accepted length is i with probability r_i - r_{i+1} whatever the distributions are.
    rates = [0.75, 0.5, 0.125]
    grid = (np.arange(24) + 0.5) / 24  # conditional rates 3/4, 2/3, 1/4 are multiples of 1/24
    coins = np.stack(np.meshgrid(grid, grid, grid, [0.5], indexing="ij"), axis=-1).reshape(-1, 4)
    p = np.tile(np.full((1, 4, 3), 1 / 3), (len(coins), 1, 1))
    draft = np.tile([[0, 1, 2]], (len(coins), 1))
    for q in (None, p[:, :3]):
        outcome = form("accept_synthetic", p, q, draft, coins, rates=rates)
        marginals = outcome.accepted_at / len(coins)
        assert marginals == pytest.approx(rates, abs=1e-12)
        assert (outcome.emitted == outcome.accepted + 1).all()


def test_synthetic_never_accepts_what_was_not_drafted(form):
    outcome = form("accept_synthetic", [[[0.5, 0.5]] * 3], None, [[1, -1]], [[0.0, 0.0, 0.9]], rates=[1.0, 1.0])
    assert outcome.emitted_tokens() == [[1, 1]]


# ---- records --------------------------------------------------------------------------------------------------------


def test_outcomes_become_step_records(form):
    p = np.array([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]]] * 2)
    q = np.array([[[0.25, 0.75, 0.0], [0.5, 0.0, 0.5]]] * 2)
    outcome = form("accept_standard", p, q, [[0, 0], [1, -1]], [[0.1, 0.9, 0.1], [0.9, 0.9, 0.1]])
    rows = outcome.records(["a", "b"], [4, 0], "draft", [10, 20], tags=["copy", "open"], match_lens=[None, 2])
    a, b = rows
    assert (a.request, a.step, a.source, a.tag, a.context_len) == ("a", 4, "draft", "copy", 10)
    assert (a.drafted, a.accepted, a.emitted, a.n_tested, a.match_len) == (2, 1, 2, 2, None)
    assert a.overlap == pytest.approx((0.75, 0.75))
    assert (b.drafted, b.accepted, b.emitted, b.n_tested, b.match_len) == (1, 0, 1, 1, 2)
    assert b.overlap == pytest.approx((0.75,))
    with pytest.raises(InputError, match="steps: expected one per request"):
        outcome.records(["a", "b"], [4], "draft", [10, 20])


def test_a_tree_whose_path_ends_in_a_leaf_records_what_was_tested(form):
    p = np.array([one_hot_rows([1, 2, 3], 4)])
    outcome = form("accept_tree", p, None, [[1, 2]], [[0.5, 0.5, 0.5]], parents=[-1, -1])
    (row,) = outcome.records(["a"], [0], "tree", [3], verified=[12])
    assert (row.drafted, row.accepted, row.n_tested, row.n_verified) == (2, 1, 1, 12)
    assert row.overlap == (1.0,)
