"""What only the torch form promises: no waiting for the device, chunks, tails of large vocabularies."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import (  # noqa: E402 - after the check that torch is there
    DataDependentOutputException,
    FakeTensorMode,
)

from specplan.errors import InputError  # noqa: E402
from specplan.harness import verifiers  # noqa: E402
from specplan.harness.verifiers import logits as logits_module  # noqa: E402
from specplan.harness.verifiers.categorical import draw  # noqa: E402
from specplan.verify import Sampling  # noqa: E402

B, K, V = 3, 4, 11
PARENTS = [-1, -1, 0, 0]


def calls():
    """Every rule once, on inputs made where it is called."""
    p, q = torch.full((B, K + 1, V), 1 / V), torch.full((B, K, V), 1 / V)
    draft, u = torch.zeros(B, K, dtype=torch.int64), torch.rand(B, K + 1, dtype=torch.float64)
    all_q = torch.full((B, K + 1, V), 1 / V)
    return {
        "greedy": lambda: verifiers.accept_greedy(p, draft),
        "standard": lambda: verifiers.accept_standard(p, q, draft, u),
        "one-hot": lambda: verifiers.accept_one_hot(p, draft, u),
        "block": lambda: verifiers.accept_block(p, q, draft, u),
        "block one-hot": lambda: verifiers.accept_block(p, None, draft, u),
        "synthetic": lambda: verifiers.accept_synthetic(p, q, draft, u, rates=[1, 0.5, 0.5, 0]),
        "tree": lambda: verifiers.accept_tree(p, None, draft, u, parents=PARENTS),
        "tree from q": lambda: verifiers.accept_tree(p, all_q, draft, u, parents=PARENTS),
        "tree without replacement": lambda: verifiers.accept_tree(
            p, all_q, draft, u, parents=PARENTS, replacement=False
        ),
        "tree greedy": lambda: verifiers.accept_tree_greedy(p, draft, parents=PARENTS),
        "sglang": lambda: verifiers.accept_sglang_target_only(p, draft, torch.rand(B, K + 2), parents=PARENTS),
        "vllm v1": lambda: verifiers.accept_vllm_v1(
            p, q, draft, u[:, :K], torch.ones(B, V), torch.zeros(B, dtype=torch.int64)
        ),
        "vllm v2": lambda: verifiers.accept_vllm_v2(p, q, draft, u[:, :K], torch.zeros(B, K + 1, V), block=True),
        "logits": lambda: verifiers.verify_logits(
            verifiers.accept_standard,
            p,
            Sampling(temperature=(0.0, 1.0, 0.5), top_k=3, top_p=0.9, min_p=0.1),
            q,
            draft,
            u,
        ),
    }


@pytest.mark.parametrize("name", calls())
def test_no_rule_reads_a_number_back_from_the_device(name):
    # Fake tensors have shapes and no numbers: whatever asks for one (item, nonzero, a boolean index) raises.
    with FakeTensorMode(allow_non_fake_inputs=True):
        outcome = calls()[name]()
    assert outcome.tokens.shape[0] == B


def test_fake_tensors_do_catch_a_rule_that_waits():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool((torch.rand(3) > 0.5).any())


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=(0.0, 0.5, 1.0, 0.7, 0.0), top_k=(0, 3, 0, 5, 2))]
)
def test_chunks_of_requests_change_nothing(monkeypatch, sampling):
    g = torch.Generator().manual_seed(0)
    batch = 5
    logits = torch.randn(batch, K + 1, V, generator=g)
    q = torch.softmax(torch.randn(batch, K + 1, V, generator=g), dim=-1)
    draft, u = torch.randint(-1, V, (batch, K), generator=g), torch.rand(batch, K + 1, generator=g)
    parents = np.array([[-1, 0, 1, 2], PARENTS, PARENTS, [-1] * 4, PARENTS])
    p = verifiers.probabilities(logits, sampling)
    whole = {
        "standard": verifiers.accept_standard(p, q[:, :K], draft, u).to_host(),
        "tree": verifiers.accept_tree(p, q, draft, u, parents=parents).to_host(),
    }
    monkeypatch.setattr(logits_module, "CPU_CHUNK", 2 * (K + 1) * V)
    split = {
        "standard": verifiers.verify_logits(verifiers.accept_standard, logits, sampling, q[:, :K], draft, u).to_host(),
        "tree": verifiers.verify_logits(
            verifiers.accept_tree, logits, sampling, q, draft, u, parents=parents
        ).to_host(),
    }
    for name, expected in whole.items():
        found = split[name]
        assert found.emitted_tokens() == expected.emitted_tokens()
        assert (found.drafted == expected.drafted).all()
        assert found.overlap == pytest.approx(expected.overlap, nan_ok=True)
        assert (found.reached == expected.reached).all()


def test_a_bad_row_in_a_later_chunk_is_named_by_its_place_in_the_batch(monkeypatch):
    monkeypatch.setattr(logits_module, "CPU_CHUNK", (K + 1) * V)
    logits = torch.zeros(4, K + 1, V)
    logits[3, 2, 5] = torch.nan
    draft, u = torch.zeros(4, K, dtype=torch.int64), torch.zeros(4, K + 1)
    outcome = verifiers.verify_logits(verifiers.accept_one_hot, logits, Sampling(), draft, u)
    with pytest.raises(InputError, match="target probabilities of request 3, position 2: NaN"):
        outcome.to_host()
    with pytest.raises(InputError, match="request 103"):
        outcome.to_host(first=100)


def test_half_precision_logits_are_verified_in_float32():
    logits = torch.randn(2, 2, 100, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    p = verifiers.probabilities(logits)
    assert p.dtype == torch.float32
    assert torch.equal(p, torch.softmax(logits.float(), dim=-1))


@pytest.mark.parametrize("vocab", [1, 2, 511, 512, 513, 128_256, 256_000])
def test_draws_invert_the_cumulative_weights(vocab):
    rng = np.random.default_rng(vocab)
    w = rng.exponential(size=vocab) * (rng.random(vocab) < 0.7)
    w[-1] = w[0] = 1.0
    u = np.append(rng.random(200), [0.0, 1 - 2.0**-53])
    found = draw(torch.from_numpy(w).expand(len(u), -1), torch.from_numpy(u)).numpy()
    cdf = np.cumsum(w) / w.sum()
    below = np.where(found > 0, cdf[found - 1], 0.0)
    assert (w[found] > 0).all()
    assert (below <= u + 1e-12).all()
    assert (u <= cdf[found] + 1e-12).all()


def test_a_tail_below_float32_resolution_keeps_its_probability():
    # 200,000 tokens of 1e-9 each behind one of nearly 1: in float32 cumulative sums the tail would be lost.
    vocab, tail = 200_001, 1e-9
    w = torch.full((1, vocab), tail, dtype=torch.float32)
    w[0, 0] = 1.0
    total = 1.0 + 2e-4
    u = torch.tensor([(1.0 + tail * (n + 0.5)) / total for n in (0, 1, 99_999, 199_999)], dtype=torch.float64)
    found = draw(w.expand(4, -1), u)
    assert found.tolist() == pytest.approx([1, 2, 100_000, 200_000], abs=2)
