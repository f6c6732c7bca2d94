"""Measuring: records survive a kill, parts add up to the whole, spellings and prompts are read with one clear line."""

import dataclasses
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from specplan.decide.measured import summarise
from specplan.decide.measured_speed import PassTimes, measured_speed, plane_source
from specplan.errors import InputError
from specplan.harness.job import MeasureJob, run_job
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.load import load_causal_lm, load_llama
from specplan.harness.loop import Request, SpeculativeLoop
from specplan.harness.measure import OUTPUTS_FILE, PASSES_FILE, STEPS_FILE, Settings, measure
from specplan.harness.prompts import read_requests
from specplan.harness.sources import Drafts, read_source
from specplan.harness.verifiers import Sampling
from specplan.harness.vocabularies import mapping_between
from specplan.records.prompts import prompt_file
from specplan.records.step import StepRecord
from specplan.records.tally import Tally

pytestmark = pytest.mark.tail

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target() -> Llama:
    torch.manual_seed(5)
    shape = LlamaShape(
        vocab_size=12,
        hidden_size=32,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=8,
        ffn_size=48,
        tied=False,
        max_position=512,
    )
    model = Llama(shape).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


REQUESTS = [
    Request(id=f"{tag}{i}", prompt=tuple((i + j * (2 + i)) % 12 for j in range(10)) * 2, tag=tag)
    for tag in ("copy", "open")
    for i in range(3)
]
SOURCES = [read_source(text) for text in ("ngram:min=1,max=3,k=4", "suffix:k=8", "draft:drop=1,k=2")]
SETTINGS = Settings(max_tokens=20)


def run(target: Llama, folder: Path, **more):
    return measure(target, SOURCES, REQUESTS, folder, settings=SETTINGS, **more)


def outputs(folder: Path) -> dict[tuple[str, str], list[int]]:
    rows = [json.loads(line) for line in (folder / OUTPUTS_FILE).read_text().splitlines()]
    found = {(r["source"], r["id"]): r["output_token_ids"] for r in rows}
    assert len(found) == len(rows)
    return found


def test_every_source_gives_the_plain_output_and_a_row_per_tag(target: Llama, tmp_path: Path) -> None:
    found = run(target, tmp_path)
    assert [(s.measured.source, s.measured.tag) for s in found.speeds] == [
        (source.spelling, tag) for source in SOURCES for tag in ("copy", "open")
    ]
    got = outputs(tmp_path)
    for (source, name), tokens in got.items():
        assert tokens == got["none", name], source
    for s in found.speeds:
        assert s.speedup * s.plain_tokens_per_s == pytest.approx(s.tokens_per_s)
        product = s.emitted_ratio * s.time_ratio * s.predicted_tokens_per_s
        assert product == pytest.approx(s.tokens_per_s, rel=1e-9)
        assert (s.c is None) == (not s.measured.source.startswith("draft"))


def test_a_killed_run_goes_on_and_counts_nothing_twice(target: Llama, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(source: str, done: int, _: int) -> None:
        if source.startswith("suffix") and done == 4:
            raise KilledError

    with pytest.raises(KilledError):
        run(target, tmp_path, progress=kill)
    assert not (tmp_path / STEPS_FILE).exists()
    with (tmp_path / OUTPUTS_FILE).open("a") as file:
        file.write('{"source": "torn')
    seen: list[tuple[str, int]] = []
    found = run(target, tmp_path, progress=lambda source, done, _: seen.append((source, done)))
    # sources take turns: none is more than a request ahead of another, and nothing is run twice
    first = {name: min(n for source, n in seen if source == name) for name, _ in seen}
    assert set(first.values()) <= {4, 5}
    assert sorted(seen) == sorted((name, n) for name, start in first.items() for n in range(start, len(REQUESTS) + 1))
    whole = tmp_path / "whole"
    at_once = run(target, whole)
    assert outputs(tmp_path) == outputs(whole)

    def counts(m):
        return [(s.measured.source, s.measured.tag, s.measured.tally.emitted_tokens) for s in m.speeds]

    assert counts(found) == counts(at_once)


def test_at_temperature_1_a_killed_run_is_the_same_run(target: Llama, tmp_path: Path) -> None:
    """Draws belong to a request: what ran before a kill, or beside, changes none of them."""

    class KilledError(Exception):
        pass

    settings = dataclasses.replace(SETTINGS, temperature=1.0)
    sources = [*SOURCES[:2], read_source("draft:drop=1,k=2,sample=probabilistic")]
    whole = measure(target, sources, REQUESTS, tmp_path / "whole", settings=settings)
    for after in (1, 7, 13, 22):
        calls = 0

        def kill(*_: object, after: int = after) -> None:
            nonlocal calls
            calls += 1
            if calls == after:
                raise KilledError

        folder = tmp_path / str(after)
        with pytest.raises(KilledError):
            measure(target, sources, REQUESTS, folder, settings=settings, progress=kill)
        again = measure(target, sources, REQUESTS, folder, settings=settings)
        assert outputs(folder) == outputs(tmp_path / "whole")
        for s, w in zip(again.speeds, whole.speeds, strict=True):
            assert s.measured.tally.accepted_histogram == w.measured.tally.accepted_histogram


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_killed_at_20_random_moments_it_is_the_same_run(target: Llama, tmp_path: Path, temperature: float) -> None:
    """A process that runs it is killed by SIGKILL, wherever it then is, until a run gets through."""
    settings = dataclasses.replace(SETTINGS, temperature=temperature, max_tokens=40)
    sampled = ",sample=probabilistic" if temperature else ""
    sources = [*SOURCES[:2], read_source(f"draft:drop=1,k=2{sampled}")]

    def forked(folder: Path) -> int:
        child = os.fork()
        if not child:
            try:
                measure(target, sources, REQUESTS, folder, settings=settings)
            finally:
                os._exit(0)
        return child

    began = time.monotonic()
    whole = measure(target, sources, REQUESTS, tmp_path / "whole", settings=settings)
    span = time.monotonic() - began
    rng = random.Random(7)  # noqa: S311 - moments, not keys
    killed = tries = 0
    while killed < 20:
        folder = tmp_path / f"run-{tries}"
        tries += 1
        while not (folder / STEPS_FILE).exists():
            child = forked(folder)
            time.sleep(rng.uniform(0.05, 0.5) * span)
            os.kill(child, signal.SIGKILL)
            killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        again = measure(target, sources, REQUESTS, folder, settings=settings)
        assert outputs(folder) == outputs(tmp_path / "whole")
        for s, w in zip(again.speeds, whole.speeds, strict=True):
            assert s.measured.tally.accepted_histogram == w.measured.tally.accepted_histogram
            assert s.measured.tally.drafted_tokens == w.measured.tally.drafted_tokens
    assert tries > 1


def test_time_that_is_up_ends_the_run_with_the_turns_that_all_had(target: Llama, tmp_path: Path) -> None:
    in_turn = [*REQUESTS[::3], *REQUESTS[1::3], *REQUESTS[2::3]]
    found = measure(target, SOURCES, in_turn, tmp_path, settings=SETTINGS, until=time.monotonic())
    done = outputs(tmp_path)
    by_source = {name: {r for source, r in done if source == name} for name, _ in done}
    assert {len(of) for of in by_source.values()} == {4}  # two of each tag
    assert len({frozenset(of) for of in by_source.values()}) == 1
    assert {s.measured.tally.requests for s in found.speeds} == {2}


def test_a_finished_run_of_names_loads_no_model(target: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = MeasureJob(target="no-such-model", sources=tuple(s.spelling for s in SOURCES), prompts=("copy",), limit=2,
                       **dataclasses.asdict(SETTINGS))  # fmt: skip
    first = measure(target, SOURCES, REQUESTS, tmp_path, settings=SETTINGS, names=named.names())
    monkeypatch.setattr("specplan.harness.job.load_causal_lm", None)
    monkeypatch.setattr("specplan.harness.job.tokenizer_of", None)
    assert run_job(named, tmp_path).speeds == first.speeds
    with pytest.raises(InputError, match="seed: 0 there, 5 here"):
        run_job(dataclasses.replace(named, seed=5), tmp_path)


def test_threads_are_no_part_of_what_a_run_is(target: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        run(target, tmp_path, progress=kill)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert run(target, tmp_path).inputs["threads"] == 2


def test_the_clock_runs_on_warm_sources(target: Llama, tmp_path: Path) -> None:
    found = run(target, tmp_path)
    assert set(found.warm_up_s) == {"none", *(s.spelling for s in SOURCES)}
    assert all(seconds > 0 for seconds in found.warm_up_s.values())


def timed_source(draft_s: float, verify_s: float, accepted: int, paired: tuple[float, float, float]):
    measured = summarise(Tally.of_steps(steps(3, [accepted] * 8, (draft_s, verify_s, 0.0))), source="s")
    passes = PassTimes(widths=(1, 4), target_s=(0.01, 0.012))
    return measured_speed(measured, kappa=3, passes=passes, plain_tokens_per_s=100.0, plain_host_s=0.0, paired=paired)


@pytest.mark.parametrize(
    ("paired", "verdict"),
    [
        ((2.0, 1.8, 2.2), "pays"),
        ((1.05, 0.95, 1.15), "uncertain"),
        ((0.8, 0.7, 0.9), "does not pay"),
        ((2.0, float("nan"), float("nan")), "uncertain"),
        ((4.0, 3.5, 4.5), "impossible"),  # at 3 tokens per step
    ],
)
def test_the_verdict_is_the_intervals(paired: tuple[float, float, float], verdict: str) -> None:
    s = timed_source(0.0, 0.015, 2, paired)
    assert s.verdict == verdict
    assert verdict in s.sentence


def test_a_prediction_takes_nothing_from_the_steps_that_it_predicts() -> None:
    """Half of the requests accept all and draft slowly, half accept nothing: each half is predicted by the other."""
    fast = summarise(Tally.of_steps(steps(3, [3] * 8, (0.002, 0.01, 0.0))), source="s")
    slow = summarise(Tally.of_steps(steps(3, [0] * 4, (0.008, 0.01, 0.0))), source="s")
    both = summarise(fast.tally + slow.tally, source="s")
    passes = PassTimes(widths=(1, 4), target_s=(0.01, 0.012))
    s = measured_speed(both, kappa=3, passes=passes, plain_tokens_per_s=100.0, plain_host_s=0.0, halves=(fast, slow))
    assert s.predicted_emitted == pytest.approx((8 * 1 + 4 * 4) / 12)
    assert s.predicted_step_s == pytest.approx((8 * 0.008 + 4 * 0.002) / 12 + 0.012)


def test_a_finished_run_is_read_again_without_running(target: Llama, tmp_path: Path) -> None:
    first = run(target, tmp_path)
    calls: list[str] = []
    again = run(target, tmp_path, progress=lambda *_: calls.append("ran"))
    assert not calls
    assert again.speeds == first.speeds
    with pytest.raises(InputError, match="other inputs"):
        measure(target, SOURCES, REQUESTS, tmp_path, settings=dataclasses.replace(SETTINGS, max_tokens=9))


def test_passes_are_timed_between_requests(target: Llama, tmp_path: Path) -> None:
    run(target, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / PASSES_FILE).read_text().splitlines()]
    assert sorted(row["source"] for row in rows if "warm_up_s" in row) == sorted(
        ["none", *(s.spelling for s in SOURCES)]
    )
    rows = [row for row in rows if "target_s" in row]
    assert len(rows) == 4 * len(REQUESTS)
    assert all(set(row["target_s"]) >= {"1", "9"} for row in rows)
    assert {row["source"] for row in rows if "draft_s" in row} == {SOURCES[2].spelling}
    (tmp_path / STEPS_FILE).unlink()
    run(target, tmp_path)  # a run anew, not a resumed one: it keeps no round of the run before
    assert sum("target_s" in line for line in (tmp_path / PASSES_FILE).read_text().splitlines()) == len(rows)


def steps(drafted: int, accepted: list[int], seconds: tuple[float, float, float]) -> list[StepRecord]:
    return [
        StepRecord(
            request=f"r{i % 4}", step=i, source="s", context_len=10, drafted=drafted, accepted=a, emitted=a + 1,
            draft_s=seconds[0], verify_s=seconds[1], host_s=seconds[2],
        )
        for i, a in enumerate(accepted)
    ]  # fmt: skip


def test_prediction_equals_measurement_where_the_law_and_the_times_are_the_models_own() -> None:
    """At alpha 1 every draft of 3 is accepted: E is 4, and a step costs one wide pass and three draft passes."""
    measured = summarise(Tally.of_steps(steps(3, [3] * 8, (0.03, 0.012, 0.001))), source="s")
    passes = PassTimes(widths=(1, 4), target_s=(0.01, 0.012), draft_s=0.01)
    s = measured_speed(measured, kappa=3, passes=passes, plain_tokens_per_s=90.0, plain_host_s=0.001)
    assert s.predicted_emitted == pytest.approx(4)
    assert s.predicted_tokens_per_s == pytest.approx(s.tokens_per_s) == pytest.approx(4 / 0.043)
    assert (s.c, s.v) == (pytest.approx(1.0), pytest.approx(1.2))
    assert s.speedup == pytest.approx(4 / 0.043 / 90)
    point = plane_source(s)
    assert (point.alpha, point.c, point.coverage) == (1.0, pytest.approx(1.0), 1.0)


def test_a_proposer_of_ones_own_is_measured_by_its_name(target: Llama, tmp_path: Path) -> None:
    texts = ("own_proposer:LastToken:k=3", "ngram:min=1,max=1,k=3,rule=latest")
    sources = [read_source(text) for text in texts]
    found = measure(target, sources, REQUESTS, tmp_path, settings=SETTINGS)
    own, same = ({s.measured.tag: s.measured.tally for s in found.speeds if s.measured.source == t} for t in texts)
    assert {tag: t.accepted_histogram for tag, t in own.items()} == {t: n.accepted_histogram for t, n in same.items()}


def test_steps_without_a_draft_count_as_plain_ones() -> None:
    rows = steps(2, [2, 0], (0.0, 0.01, 0.0)) + steps(0, [0, 0], (0.0, 0.01, 0.0))
    measured = summarise(Tally.of_steps(rows), source="s")
    passes = PassTimes(widths=(1, 3), target_s=(0.01, 0.02))
    s = measured_speed(measured, kappa=2, passes=passes, plain_tokens_per_s=100.0, plain_host_s=0.0)
    assert s.predicted_step_s == pytest.approx((0.02 + 0.01) / 2)
    alpha = measured.alpha.value
    assert s.predicted_emitted == pytest.approx(1 + 0.5 * (alpha + alpha**2))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("draft", "drop"),
        ("draft:drop=12-15,first=8", "one of"),
        ("draft:drop=15-12", "12-15"),
        ("draft:drop=x", "layers"),
        ("draft:first=0", "first"),
        ("draft:drop=1,k=0", "whole number"),
        ("draft:drop=1,sample=warm", "greedy"),
        ("draft:drop=1,size=3", "size"),
        ("ngrm", "ngram"),
        ("ngram:min=5,max=2", "min"),
    ],
)
def test_sources_that_make_no_sense_are_named(text: str, needed: str) -> None:
    with pytest.raises(InputError, match=needed):
        read_source(text)


def test_a_spelling_reads_back_as_itself() -> None:
    for text in ("draft:drop=12-15+20,k=5", "draft:first=8", "draft:model=folder,sample=probabilistic", "none"):
        source = read_source(text)
        assert read_source(source.spelling) == source


class Words:
    """A tokenizer without a chat template: a word's length is its id."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(w) for w in text.split()]}


def test_prompts_of_text_and_of_ids_are_read_with_their_tags(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one three"}\n\n{"id": "x", "kind": "copy", "prompt_token_ids": [4, 5]}\n')
    first, second = read_requests(path, Words())
    assert (first.id, first.prompt, first.tag) == ("mine-1", (3, 5), "mine")
    assert (second.id, second.prompt, second.tag) == ("x", (4, 5), "copy")


@pytest.mark.parametrize(
    ("content", "needed"),
    [
        ("{", "mine.jsonl:1"),
        ("[1]", "object"),
        ('{"text": "a"}', "prompt"),
        ('{"prompt_token_ids": [1, -2]}', "token ids"),
        ('{"prompt_token_ids": "12"}', "token ids"),
        ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "twice"),
        ("\n\n", "no prompts"),
    ],
)
def test_broken_prompt_files_name_file_and_line(tmp_path: Path, content: str, needed: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=needed):
        read_requests(path, Words())


def test_the_shipped_sets_hold_forty_prompts_each() -> None:
    for name in ("copy", "open.jsonl"):
        requests = read_requests(prompt_file(name), Words())
        assert len(requests) >= 40
        assert len({r.id for r in requests}) == len(requests)
    with pytest.raises(InputError, match="copy, open"):
        prompt_file("poems")


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"batch": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"dtype": "int3"},
     {"rule": "fast"}, {"limit": -1}, {"seconds": 0.5}, {"seconds": 9.0, "runner": "vllm"}],
    ids=str,
)  # fmt: skip
def test_a_job_that_cannot_run_is_refused_before_anything_is_loaded(wrong: dict) -> None:
    with pytest.raises(InputError):
        MeasureJob(target="smollm2-135m", sources=("suffix",), prompts=("copy",), **wrong)


class WordsOf:
    """A tokenizer of given words."""

    unk_token_id = None

    def __init__(self, words: list[str]) -> None:
        self._vocab = {word: i for i, word in enumerate(words)}
        self.eos_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return self._vocab

    def tokenize(self, text: str) -> list[str]:
        return [text.replace(" ", "Ġ")]


@pytest.mark.filterwarnings("ignore:draft and target share only")
def test_a_draft_of_another_vocabulary_drafts_shared_tokens_and_leaves_the_output_as_it_is(
    target: Llama, tmp_path: Path
) -> None:
    """The draft is the target with its vocabulary in another order and one token that the target lacks."""
    words = ["<end>", *(f"Ġw{i}" for i in range(11))]
    order = [0, *range(11, 0, -1)]
    mapping = mapping_between(WordsOf(words), WordsOf([*(words[i] for i in order), "Ġnew"]))
    assert mapping.shared == 12
    draft = Llama(dataclasses.replace(target.shape, vocab_size=13)).eval()
    draft.load_state_dict(
        {n: t for n, t in target.state_dict().items() if "embed" not in n and "head" not in n}, strict=False
    )
    with torch.no_grad():
        draft.embed.weight[:12], draft.head.weight[:12] = target.embed.weight[order], target.head.weight[order]
    source = read_source("draft:model=other,k=3")
    drafts = Drafts(target, {source.spelling: mapping}, {source.spelling: draft})
    plain = measure(target, [], REQUESTS, tmp_path / "plain", settings=SETTINGS)
    generator = torch.Generator().manual_seed(0)
    drafter = drafts.drafter(source, batch=1, capacity=64, sampling=Sampling(temperature=0.0), generator=generator)
    loop = SpeculativeLoop(
        target=target, drafter=drafter, source="other", max_tokens=20, capacity=64, generator=generator
    )
    expected = outputs(tmp_path / "plain")
    for g in loop.run(REQUESTS):
        assert list(g.tokens) == expected["none", g.request.id]
        assert all(s.accepted == s.drafted == 3 for s in g.steps)
    assert not plain.speeds


def test_a_draft_of_another_size_without_a_mapping_is_refused(target: Llama, tmp_path: Path) -> None:
    other = dataclasses.replace(target.shape, vocab_size=13)
    write_folder(Llama(other), tmp_path)
    with pytest.raises(InputError, match="tokenizer"):
        Drafts(target).model(read_source(f"draft:model={tmp_path},k=3"))


def write_folder(model: Llama, folder: Path) -> None:
    """A checkpoint folder as Hugging Face spells it."""
    from safetensors.torch import save_file

    s = model.shape
    config = {
        "model_type": "llama", "vocab_size": s.vocab_size, "hidden_size": s.hidden_size, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "intermediate_size": s.ffn_size,
        "rms_norm_eps": s.norm_eps, "max_position_embeddings": s.max_position, "tie_word_embeddings": s.tied,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    state = {
        "model.embed_tokens.weight": model.embed.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    for i, layer in enumerate(model.layers):
        at = f"model.layers.{i}."
        parts = layer.qkv.weight.split((q, kv, kv))
        state |= {f"{at}self_attn.{n}_proj.weight": w for n, w in zip("qkv", parts, strict=True)}
        gate, up = layer.gate_up.weight.chunk(2)
        state |= {
            f"{at}self_attn.o_proj.weight": layer.out.weight,
            f"{at}mlp.gate_proj.weight": gate,
            f"{at}mlp.up_proj.weight": up,
            f"{at}mlp.down_proj.weight": layer.down.weight,
            f"{at}input_layernorm.weight": layer.input_norm.weight,
            f"{at}post_attention_layernorm.weight": layer.post_norm.weight,
        }
    save_file({name: t.detach().clone().contiguous() for name, t in state.items()}, folder / "model.safetensors")


def test_a_checkpoint_folder_loads_with_the_logits_that_were_saved(target: Llama, tmp_path: Path) -> None:
    write_folder(target, tmp_path)
    loaded = load_llama(tmp_path)
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(loaded(tokens, loaded.new_cache(1, 10)), target(tokens, target.new_cache(1, 10)))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        load_llama(tmp_path)


def test_a_model_of_another_family_is_measured_through_transformers(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(2)
    config = transformers.GPTNeoXConfig(
        vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=512,
    )  # fmt: skip
    folder = tmp_path / "neox"
    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)
    model = load_causal_lm(folder)
    sources = [read_source("ngram:min=1,max=3,k=4"), read_source(f"draft:model={folder},k=2")]
    found = measure(model, sources, REQUESTS[:3], tmp_path / "run", settings=SETTINGS)
    got = outputs(tmp_path / "run")
    assert all(tokens == got["none", name] for (_, name), tokens in got.items())
    assert found.speeds[1].c == pytest.approx(1.0, abs=0.9)
    assert all(
        row["draft_s"] > 0 for row in map(json.loads, (tmp_path / "run" / PASSES_FILE).open()) if "draft_s" in row
    )
    with pytest.raises(InputError, match="Llama family"):
        measure(model, [read_source("draft:drop=1")], REQUESTS[:1], tmp_path / "self", settings=SETTINGS)


def test_more_threads_are_taken_only_where_they_pay(target: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    from specplan.harness import threads

    chosen = [1]
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: chosen.append(n))
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for seconds, best in (({1: 8.0, 4: 2.0, 8: 1.9}, 4), ({1: 1.0, 4: 3.0, 8: 0.9}, 1), ({1: 8.0, 4: 4.0, 8: 1.0}, 8)):
        monkeypatch.setattr(threads.PassClock, "round", lambda *_, s=seconds: {4: s[chosen[-1]]})
        assert threads.fastest_threads(target) == best == chosen[-1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = list(chosen)
    threads.fastest_threads(target)
    assert chosen == before
