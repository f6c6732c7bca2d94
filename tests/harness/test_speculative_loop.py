"""The loop: greedy output is plain decoding whatever drafts, sampled output keeps the target's law, rows do not mix."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from specplan.errors import InputError, UnsupportedError
from specplan.harness.causal_lm import TransformersLM
from specplan.harness.drafters import Drafter, MatcherDrafter, ModelDrafter, NoDrafter
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.load import load_llama
from specplan.harness.loop import GREEDY, Generated, Request, SpeculativeLoop
from specplan.harness.verifiers import Sampling
from specplan.propose.build import proposer_of
from specplan.propose.spelling import parse_source

torch.set_num_threads(1)
CAPACITY = 160
SHAPE = LlamaShape(
    vocab_size=12, hidden_size=32, layers=3, heads=4, kv_heads=2, head_dim=8, ffn_size=48, tied=False, max_position=512
)


@pytest.fixture(scope="module")
def target() -> Llama:
    torch.manual_seed(5)
    model = Llama(SHAPE).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def requests(n: int, vocab: int = 12, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    # Prompts that repeat themselves, so that matchers have something to find.
    return [
        Request(
            id=f"r{i}",
            prompt=tuple(int(t) for t in np.tile(rng.integers(0, vocab, 5), 3)),
            tag="copy" if i % 2 else "open",
        )
        for i in range(n)
    ]


def matcher(spelling: str) -> MatcherDrafter:
    proposer, k, limit = proposer_of(parse_source(spelling))
    return MatcherDrafter(proposer=proposer, k=k, max_model_len=limit)


def self_draft(target: Llama, batch: int, **more) -> ModelDrafter:
    draft = target.without_layers([1])
    return ModelDrafter(model=draft, k=3, batch=batch, capacity=CAPACITY, max_model_len=CAPACITY, **more)


def loop(target, drafter: Drafter, **more) -> SpeculativeLoop:
    given = {"source": "test", "max_tokens": 40, "capacity": CAPACITY, "generator": torch.Generator().manual_seed(1)}
    return SpeculativeLoop(target=target, drafter=drafter, **(given | more))


def by_id(generated) -> dict[str, Generated]:
    return {g.request.id: g for g in generated}


SOURCES = ("ngram:min=1,max=3,k=4", "ngram:min=1,max=3,k=4,rule=vllm-v2", "suffix:k=8", "sglang-ngram:budget=8")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("source", [*SOURCES, "model"])
def test_greedy_output_equals_plain_decoding_token_for_token(target: Llama, source: str, batch: int) -> None:
    plain = by_id(loop(target, NoDrafter()).run(requests(7)))
    drafter = self_draft(target, batch) if source == "model" else matcher(source)
    got = by_id(loop(target, drafter, batch=batch).run(requests(7)))
    assert {k: g.tokens for k, g in got.items()} == {k: g.tokens for k, g in plain.items()}
    steps = [s for g in got.values() for s in g.steps]
    assert sum(s.accepted for s in steps) > 0
    assert all(s.emitted == s.accepted + 1 and s.accepted <= s.drafted for s in steps)


def test_a_draft_equal_to_the_target_is_always_accepted_under_greedy(target: Llama) -> None:
    drafter = ModelDrafter(model=target, k=4, batch=1, capacity=CAPACITY, max_model_len=CAPACITY)
    for g in loop(target, drafter).run(requests(2)):
        assert all(s.accepted == 4 for s in g.steps)


def test_a_probabilistic_draft_equal_to_the_target_is_always_accepted(target: Llama) -> None:
    sampling = Sampling(temperature=1.3)
    drafter = ModelDrafter(
        model=target, k=3, batch=2, capacity=CAPACITY, max_model_len=CAPACITY, sampling=sampling,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    for g in loop(target, drafter, sampling=sampling, batch=2).run(requests(3)):
        assert all(s.accepted == 3 for s in g.steps)
        assert all(o == pytest.approx(1, abs=1e-5) for s in g.steps for o in s.overlap or ())


def first_tokens(target: Llama, drafter: Drafter, n: int, **more) -> Counter:
    """Law of the second and third token of n runs of one prompt."""
    many = [Request(id=str(i), prompt=(1, 2, 3, 1, 2, 3, 1, 2)) for i in range(n)]
    out = loop(target, drafter, max_tokens=3, sampling=Sampling(temperature=1.0), batch=500, **more).run(many)
    return Counter(g.tokens for g in out)


def exact_law(target: Llama) -> dict[tuple[int, ...], float]:
    prompt = (1, 2, 3, 1, 2, 3, 1, 2)
    law = {}
    paths = [[*prompt, *head] for head in itertools.product(range(12), repeat=2)]
    logits = target(torch.tensor(paths), target.new_cache(len(paths), 10))
    p = torch.softmax(logits.double(), -1)
    for path, rows in zip(paths, p, strict=True):
        a, b = path[-2:]
        for c in range(12):
            law[a, b, c] = float(rows[-3, a] * rows[-2, b] * rows[-1, c])
    return law


@pytest.mark.parametrize(
    "source", ["ngram:min=1,max=3,k=2", "sglang-ngram:budget=6", "greedy draft", "sampled draft", "block"]
)
def test_sampled_output_keeps_the_targets_law(target: Llama, source: str) -> None:
    """Chi-square over the 12^3 outcomes of three tokens, pooled to cells of at least 20 expected; seeded.

    A true law fails with probability 1e-4 per source.
    """
    from scipy.stats import chi2

    n = 3000
    sampling = Sampling(temperature=1.0)
    more = {"rule": "block"} if source == "block" else {}
    if source in ("sampled draft", "block"):
        drafter: Drafter = self_draft(target, 500, sampling=sampling, generator=torch.Generator().manual_seed(9))
    else:
        drafter = self_draft(target, 500) if source == "greedy draft" else matcher(source)
    seen = first_tokens(target, drafter, n, **more)
    law = sorted(exact_law(target).items(), key=lambda item: -item[1])
    statistic, cells, rest_p, rest_n = 0.0, 0, 0.0, 0
    for outcome, p in law:
        if n * p >= 20:
            statistic += (seen[outcome] - n * p) ** 2 / (n * p)
            cells += 1
        else:
            rest_p, rest_n = rest_p + p, rest_n + seen[outcome]
    statistic += (rest_n - n * rest_p) ** 2 / (n * rest_p)
    assert cells > 10
    assert statistic < chi2.isf(1e-4, cells)


def test_requests_stop_on_their_own_and_keep_what_they_got(target: Llama) -> None:
    plain = by_id(loop(target, NoDrafter()).run(requests(6)))
    stop = next(iter(plain.values())).tokens[5]
    got = by_id(loop(target, matcher("ngram:min=1,max=3,k=4"), batch=3, stop_ids=frozenset({stop})).run(requests(6)))
    for name, g in plain.items():
        cut = g.tokens.index(stop) + 1 if stop in g.tokens else len(g.tokens)
        assert got[name].tokens == g.tokens[:cut]


def test_a_seed_repeats_a_run(target: Llama) -> None:
    def once() -> list[tuple[int, ...]]:
        run = loop(target, matcher("ngram:min=1,max=3,k=4"), sampling=Sampling(temperature=1.0), batch=2)
        return [g.tokens for g in run.run(requests(4))]

    assert once() == once()


def test_records_name_request_tag_match_and_times(target: Llama) -> None:
    (g, *_) = loop(target, matcher("ngram:min=1,max=3,k=4")).run(requests(2))
    lengths = [s.context_len for s in g.steps]
    assert lengths[0] == len(g.request.prompt) + 1
    assert all(b - a == s.emitted for (a, b), s in zip(itertools.pairwise(lengths), g.steps, strict=False))
    assert all(s.draft_s is not None and s.verify_s > 0 and s.host_s > 0 for s in g.steps)
    assert any(s.match_len for s in g.steps)


def test_bad_requests_are_named(target: Llama) -> None:
    with pytest.raises(InputError, match="empty"):
        list(loop(target, NoDrafter()).run([Request(id="x", prompt=())]))
    with pytest.raises(InputError, match="exceed the cache"):
        list(loop(target, NoDrafter()).run([Request(id="x", prompt=(1,) * 150)]))


def tiny_transformers(**more):
    import transformers

    torch.manual_seed(2)
    config = transformers.GPTNeoXConfig(
        vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=512, **more,
    )  # fmt: skip
    model = transformers.GPTNeoXForCausalLM(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


@pytest.mark.parametrize("source", ["ngram:min=1,max=3,k=4", "sglang-ngram:budget=8"])
def test_any_causal_model_of_transformers_runs_through_the_adapter(source: str) -> None:
    model = tiny_transformers()
    got = by_id(loop(TransformersLM(model), matcher(source), batch=2).run(requests(4)))
    for r in requests(4):
        prompt = torch.tensor([r.prompt])
        seen = torch.ones_like(prompt)  # else token 0 of the prompt would be taken for padding
        out = model.generate(
            prompt, attention_mask=seen, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert got[r.id].tokens == tuple(out[0, prompt.shape[1] :].tolist())


def test_a_model_whose_cache_cannot_roll_back_is_refused_by_its_layers() -> None:
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="sliding_attention"):
        TransformersLM(transformers.Gemma2ForCausalLM(config))


TRACES = Path(__file__).parent.parent / "data" / "vllm_cpu_traces"
TRACE_SOURCES = {
    "ngram25_k3_t0": "ngram:min=2,max=5,k=3",
    "suffix32_t0": "suffix:k=32",
    "draft26_k3_t0": "draft",
}


@pytest.fixture(scope="module")
def smollm2() -> Llama:
    return load_llama("smollm2-135m")


def same_as_the_engine(smollm2: Llama, name: str, picked: slice, tokens: int | None = None) -> None:
    trace = json.loads((TRACES / f"{name}.json").read_text())
    rows = trace["requests"][picked]
    most = min(tokens or trace["max_tokens"], trace["max_tokens"])
    if TRACE_SOURCES[name] == "draft":
        draft = smollm2.without_layers(range(12, 16))
        drafter: Drafter = ModelDrafter(model=draft, k=3, batch=1, capacity=2048, max_model_len=2048)
    else:
        drafter = matcher(TRACE_SOURCES[name] + ",len=2048")
    run = loop(
        smollm2, drafter, max_tokens=most, capacity=2048, stop_ids=frozenset({trace["eos_token_id"]}),
        sampling=GREEDY,
    )  # fmt: skip
    asked = [Request(id=r["id"], prompt=tuple(r["prompt_token_ids"])) for r in rows]
    for g, r in zip(run.run(asked), rows, strict=True):
        assert list(g.tokens) == r["output_token_ids"][:most]
        counted = [(s.drafted, s.accepted) for s in g.steps]
        engines = [(len(s["drafts"]), len(s["gen"]) - 1) for s in r["steps"][1:]]
        whole = len(engines) if tokens is None else len(counted) - 1  # the last step may be cut off
        assert counted[:whole] == engines[:whole]
        assert len(counted) == len(engines) or tokens is not None


@pytest.mark.model
@pytest.mark.parametrize("name", TRACE_SOURCES)
def test_greedy_runs_give_the_engines_tokens_drafts_and_accepted_counts(smollm2: Llama, name: str) -> None:
    """The first two requests in their order: a shared store then holds what the engine's held."""
    same_as_the_engine(smollm2, name, slice(0, 2), tokens=None if name.startswith("suffix") else 24)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", TRACE_SOURCES)
def test_all_requests_of_the_engines_greedy_runs(smollm2: Llama, name: str) -> None:
    same_as_the_engine(smollm2, name, slice(None))


def smollm2_prompts(n: int) -> list[Request]:
    from specplan.harness.prompts import read_requests, tokenizer_of
    from specplan.records.prompts import prompt_file

    tokenizer = tokenizer_of("smollm2-135m")
    return [r for name in ("copy", "open") for r in read_requests(prompt_file(name), tokenizer, limit=n // 2)]


@pytest.mark.model
@pytest.mark.slow
def test_greedy_output_equals_transformers_generate_on_20_prompts_with_every_source(smollm2: Llama) -> None:
    from transformers import AutoModelForCausalLM

    from specplan.harness.load import smollm2_gguf

    path = smollm2_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
    asked = smollm2_prompts(20)
    expected = {}
    for r in asked:
        prompt = torch.tensor([r.prompt])
        seen = torch.ones_like(prompt)
        out = theirs.generate(prompt, attention_mask=seen, max_new_tokens=48, do_sample=False, pad_token_id=0)
        expected[r.id] = tuple(out[0, prompt.shape[1] :].tolist())
    self_draft = ModelDrafter(
        model=smollm2.without_layers(range(12, 16)), k=3, batch=4, capacity=512, max_model_len=512
    )
    drafters: dict[str, Drafter] = {
        "none": NoDrafter(),
        "draft": self_draft,
        **{s: matcher(s) for s in ("ngram:min=2,max=5,k=3", "suffix", "sglang-ngram:budget=8")},
    }
    for name, drafter in drafters.items():
        run = loop(smollm2, drafter, max_tokens=48, capacity=512, stop_ids=frozenset({2}), batch=4)
        assert {g.request.id: g.tokens for g in run.run(asked)} == expected, name


@pytest.mark.model
@pytest.mark.slow
def test_at_temperature_1_counts_follow_theory_and_tell_greedy_from_probabilistic_drafts(smollm2: Llama) -> None:
    """Accepted minus the sum of overlaps at reached positions is a martingale: 3 standard deviations bound it."""
    sampling = Sampling(temperature=1.0)
    alphas = {}
    for name in ("greedy", "probabilistic"):
        drafter = ModelDrafter(
            model=smollm2.without_layers(range(12, 16)), k=3, batch=4, capacity=512, max_model_len=512,
            sampling=sampling if name == "probabilistic" else None, generator=torch.Generator().manual_seed(7),
        )  # fmt: skip
        run = loop(smollm2, drafter, max_tokens=64, capacity=512, stop_ids=frozenset({2}), sampling=sampling, batch=4)
        steps = [s for g in run.run(smollm2_prompts(16)) for s in g.steps]
        chances = np.array([o for s in steps for o in s.overlap or ()])
        accepted = sum(s.accepted for s in steps)
        spread = np.sqrt((chances * (1 - chances)).sum())
        assert abs(accepted - chances.sum()) < 3 * spread, name
        alphas[name] = float(chances.mean())
    assert 0.30 < alphas["greedy"] < 0.48
    assert 0.50 < alphas["probabilistic"] < 0.67
