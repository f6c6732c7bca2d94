"""Inputs as people paste them, with the results they should give; changed at random, read rightly or refused."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from specplan.decide.measured import MeasuredSource, summarise
from specplan.errors import InputError
from specplan.telemetry.logs import read_log
from specplan.telemetry.observation import Observation
from specplan.telemetry.prometheus import observations, parse_scrape
from specplan.telemetry.read import read_origin
from specplan.values.engine_words import words


def measured(seen: Observation) -> MeasuredSource:
    return summarise(seen.tally, source="x", means=seen.means, tested=seen.tested)


def read_text(text: str, tmp_path: Path, name: str = "pasted", *, width: int | None = None) -> list[Observation]:
    path = tmp_path / name
    path.write_text(text)
    return read_origin(str(path), width=width)


def gauges(length: float, rate: float, width: int | None = None) -> str:
    page = f'sglang:spec_accept_length{{model_name="m"}} {length}\nsglang:spec_accept_rate{{model_name="m"}} {rate}\n'
    return page if width is None else page + f'sglang:spec_num_draft_tokens{{model_name="m"}} {width}\n'


def decode(length: float, rate: float, second: int = 0, running: int = 1) -> str:
    return (
        f"[2025-10-22 10:27:{second:02d} TP0] Decode batch. #running-req: {running}, #token: 186, token usage: 0.00, "
        f"accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 178.86, "
        "#queue-req: 0, "
    )


ARGUMENTS = "server_args=ServerArgs(model_path='m', speculative_num_steps=3, speculative_num_draft_tokens=4)"


@pytest.mark.parametrize(("length", "rate", "n", "alpha"), [(2.0, 0.5, 4, 0.544), (3.0, 0.5, 6, 0.709)])
def test_a_page_without_the_width_is_read_by_the_older_rule(length: float, rate: float, n: int, alpha: float) -> None:
    (seen,) = observations(parse_scrape(gauges(length, rate), "page"))
    found = measured(seen)
    assert found.draft_len == n - 1
    assert found.alpha.value == pytest.approx(alpha, abs=5e-4)
    assert any("older rule" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("length", "rate", "width", "rule", "alpha", "pooled"),
    [(1.95, 0.49, 4, "older", 0.53, 0.32), (2.17, 0.39, 4, "newer", 0.59, 0.39), (1.9, 0.475, 4, "older", 0.51, 0.3)],
)
def test_decode_lines_name_the_rule_that_fits_the_width(
    length: float, rate: float, width: int, rule: str, alpha: float, pooled: float
) -> None:
    assert width == 4
    (seen,) = read_log([ARGUMENTS, *(decode(length, round(rate + 1e-9, 2), s) for s in range(4))], "log")
    found = measured(seen)
    assert any(f"{rule} rule" in note for note in seen.notes)
    assert found.alpha.value == pytest.approx(alpha, abs=0.01)
    assert found.accepted_per_drafted == pytest.approx(pooled, abs=0.005)
    assert found.tokens_per_step == pytest.approx(length)


@pytest.mark.parametrize(("length", "rate", "width"), [(2.0, 0.9, 4), (1.95, 0.35, 6), (3.0, 0.5, 4)])
def test_figures_that_fit_no_rule_are_refused(length: float, rate: float, width: int) -> None:
    with pytest.raises(InputError, match="under neither rule"):
        observations(parse_scrape(gauges(length, rate, width), "page"))


def load_line(tokens: float, second: int, running: int = 1, engine: str = "000", pid: str = "") -> str:
    return (
        f"{pid}INFO 12-01 10:{second // 60:02d}:{second % 60:02d} [loggers.py:271] Engine {engine}: Avg prompt "
        f"throughput: 0.0 tokens/s, Avg generation throughput: {tokens:.1f} tokens/s, Running: {running} reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%"
    )


def draft_line(drafts: int, k: int, at: list[int], second: int, window: float | None = 10.0, pid: str = "") -> str:
    accepted, drafted = sum(at), drafts * k
    speeds = (
        ""
        if window is None
        else (
            f"Accepted throughput: {accepted / window:.2f} tokens/s, "
            f"Drafted throughput: {drafted / window:.2f} tokens/s, "
        )
    )
    end = "" if window is None else f", Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    rates = ", ".join(f"{a / drafts:.3f}" for a in at)
    return (
        f"{pid}INFO 12-01 10:{second // 60:02d}:{second % 60:02d} [metrics.py:101] SpecDecoding metrics: "
        f"Mean acceptance length: {1 + accepted / drafts:.2f}, {speeds}Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {rates}{end}"
    )


FULL = (99.9, 381, [288, 198, 131])
RARE = (400.0, 200, [150, 100, 50])


@pytest.mark.parametrize("window", [10.0, None])
@pytest.mark.parametrize("apart", [0, 10])
def test_lines_of_load_give_steps_coverage_and_batch(window: float | None, apart: int) -> None:
    tokens, drafts, at = FULL
    (seen,) = read_log([load_line(tokens, 0), draft_line(drafts, 3, at, apart, window)], "log")
    found = measured(seen)
    assert seen.tally is not None
    assert seen.tally.steps == 382
    assert found.coverage == pytest.approx(381 / 382)
    assert found.tokens_per_step == pytest.approx(2.615, abs=5e-4)
    assert seen.mean_batch == 1
    tokens, drafts, at = RARE
    (seen,) = read_log([load_line(tokens, 0), draft_line(drafts, 3, at, apart, window)], "log")
    found = measured(seen)
    assert seen.tally is not None
    assert (seen.tally.steps, seen.tally.drafts) == (3700, 200)
    assert found.coverage == pytest.approx(0.054, abs=5e-4)
    assert found.tokens_per_step == pytest.approx(1.081, abs=5e-4)
    assert any("a draft is rare" in note and "not 2.50" in note for note in seen.notes)


def test_engines_of_one_server_have_a_row_each() -> None:
    lines = [load_line(99.9, 0), draft_line(381, 3, FULL[2], 0), load_line(400.0, 0, engine="001")]
    lines.append(draft_line(200, 3, RARE[2], 0))
    total, first, second = read_log(lines, "log")
    assert total.tally is not None
    assert total.tally.drafts == 581
    assert measured(first).coverage == pytest.approx(381 / 382)
    assert measured(second).coverage == pytest.approx(0.054, abs=5e-4)
    assert dict(second.labels) == {"engine": "001"}


K1 = {
    "completed": 80,
    "duration": 4.6,
    "total_output_tokens": 5000,
    "request_throughput": 17.4,
    "output_throughput": 1087,
    "total_token_throughput": 2000,
    "mean_tpot_ms": 9,
    "spec_decode_acceptance_length": 1.5,
    "spec_decode_acceptance_rate": 50.0,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 1000,
    "spec_decode_accepted_tokens": 500,
}


def test_one_drafted_token_is_exact(tmp_path: Path) -> None:
    (seen,) = read_text(json.dumps(K1), tmp_path)
    alpha = measured(seen).alpha
    assert alpha.value == 0.5
    assert alpha.basis == "positions"
    assert alpha.low is not None
    assert alpha.high is not None
    assert 0.46 < alpha.low < 0.5 < alpha.high < 0.54
    (bare,) = observations(
        parse_scrape(
            "".join(
                f"vllm:spec_decode_num_{k}_total {v}\n"
                for k, v in (("drafts", 1000), ("draft_tokens", 1000), ("accepted_tokens", 500))
            ),
            "page",
        )
    )
    assert measured(bare).alpha == alpha


def test_a_result_that_lacks_a_key_is_completed_or_says_which(tmp_path: Path) -> None:
    for key in ("num_drafts", "draft_tokens", "accepted_tokens", "acceptance_length", "acceptance_rate"):
        (seen,) = read_text(json.dumps({k: v for k, v in K1.items() if k != f"spec_decode_{key}"}), tmp_path)
        assert measured(seen).alpha.value == 0.5
    counts = {k: v for k, v in K1.items() if not k.endswith(("num_drafts", "acceptance_length"))}
    (seen,) = read_text(json.dumps(counts), tmp_path)
    assert any("spec_decode_num_drafts" in note for note in seen.notes)
    (seen,) = read_text(json.dumps({k: v for k, v in K1.items() if "spec" not in k}), tmp_path)
    assert seen.speed is not None
    assert seen.speed.tokens_per_s == 1087
    assert not any("ran without speculation" in note for note in seen.notes)


BENCH = """============ Serving Benchmark Result ============
Successful requests:                     20
Benchmark duration (s):                  266.90
Total generated tokens:                  3600
Output token throughput (tok/s):         76.73
Mean TPOT (ms):                          12.65
---------------Speculative Decoding---------------
Acceptance rate (%):                     50.00
Acceptance length:                       2.50
Drafts:                                  1000
Draft tokens:                            3000
Accepted tokens:                         1500
Per-position acceptance (%):
  Position 0:                            75.00
  Position 1:                            50.00
  Position 2:                            25.00
==================================================
"""
SCRIPT = """--------------------------------------------------
total_num_output_tokens: 2500
num_drafts: 1000
num_draft_tokens: 3000
num_accepted_tokens: 1500
mean acceptance length: 2.50
--------------------------------------------------
acceptance at token 0: 0.75
acceptance at token 1: 0.50
acceptance at token 2: 0.25
"""


@pytest.mark.parametrize("text", [BENCH, SCRIPT], ids=["bench", "script"])
def test_printed_summaries_give_their_counts(text: str, tmp_path: Path) -> None:
    (seen,) = read_text(text, tmp_path)
    found = measured(seen)
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (1000, 3000, 1500)
    assert found.alpha.value == pytest.approx(1500 / 2250, abs=0.002)
    assert found.tokens_per_drafted_step == 2.5


def test_rates_that_are_rounded_or_missing_widen_by_that_and_no_more(tmp_path: Path) -> None:
    (partial,) = read_text("".join(BENCH.partition("  Position 1")[0]), tmp_path)
    alpha = measured(partial).alpha
    assert alpha.value is None
    assert (alpha.low, alpha.high) == (pytest.approx(1500 / 2500), pytest.approx(1500 / 2125))
    rounded = {**K1, "spec_decode_num_drafts": 7919, "spec_decode_draft_tokens": 23757}
    at = (5938, 4001, 1999)
    rounded |= {"spec_decode_accepted_tokens": sum(at), "spec_decode_acceptance_length": 1 + sum(at) / 7919}
    rounded |= {"spec_decode_acceptance_rate": 100 * sum(at) / 23757, "rate_digits": 3}
    rounded["spec_decode_per_position_acceptance_rates"] = [round(a / 7919, 3) for a in at]
    (seen,) = read_text(json.dumps(rounded), tmp_path)
    tested = 7919 + at[0] + at[1]
    alpha = measured(seen).alpha
    assert alpha.value == pytest.approx(sum(at) / tested, abs=3e-4)
    (exact,) = read_text(
        json.dumps(rounded | {"spec_decode_per_position_acceptance_rates": [a / 7919 for a in at], "rate_digits": 9}),
        tmp_path,
    )
    full = measured(exact).alpha
    assert full.low is not None
    assert alpha.low is not None
    assert 0 <= full.low - alpha.low < 3e-4


def test_results_of_sglang_and_specforge(tmp_path: Path) -> None:
    row = {"backend": "sglang", "completed": 100, "duration": 60, "output_throughput": 316.6, "accept_length": 2.53}
    (seen,) = read_text(json.dumps(row) + "\n", tmp_path)
    assert measured(seen).tokens_per_step == 2.53
    assert measured(seen).alpha.value is None
    assert any("--width" in note for note in seen.notes)
    first, _ = read_text(json.dumps(row) + "\n" + json.dumps(row) + "\n", tmp_path, width=4)
    alpha = measured(first).alpha.value
    assert alpha is not None
    assert 1 + alpha + alpha**2 + alpha**3 == pytest.approx(2.53)
    forge = {"set": [{"batch_size": 1, "metrics": [{"output_throughput": 198.1, "accept_length": 3.18}]}]}
    (seen,) = read_text(json.dumps(forge), tmp_path)
    assert measured(seen).tokens_per_step == 3.18
    assert seen.speed is not None
    assert (seen.speed.tokens_per_s, seen.speed.concurrency) == (198.1, 1)


def test_statistics_of_tensorrt_llm(tmp_path: Path) -> None:
    rows = [
        {
            "iterLatencyMS": 20.0,
            "inflightBatchingStats": {"numContextRequests": 0, "numGenRequests": 8},
            "specDecodingStats": {
                "numDraftTokens": 24,
                "numAcceptedTokens": 12,
                "numRequestsWithDraftTokens": 8,
                "acceptanceLength": 2.5,
                "draftOverhead": 0.1,
            },
        }
    ] * 5
    for text in (json.dumps(rows), "".join(json.dumps(row) + "\n" for row in rows)):
        (seen,) = read_text(text, tmp_path)
        assert seen.tally is not None
        assert (seen.tally.steps, seen.tally.drafts, seen.tally.accepted_tokens) == (40, 40, 60)
        assert (seen.step_s, seen.mean_batch, seen.draft_share) == (0.02, 8, pytest.approx(0.1))


def test_speeds_of_tools_that_measure_from_outside(tmp_path: Path) -> None:
    guide = {"benchmarks": [{"metrics": {"output_tokens_per_second": {"successful": {"mean": 812.5}}}}]}
    guide["benchmarks"][0]["metrics"]["inter_token_latency_ms"] = {"successful": {"mean": 9.5}}
    (seen,) = read_text(json.dumps(guide), tmp_path)
    assert (seen.engine, seen.speed and seen.speed.tokens_per_s, seen.speed and seen.speed.chunk_s) == (
        "guidellm",
        812.5,
        0.0095,
    )
    simulated = {
        "metrics": {"tpot_ms": {"mean": 20.4, "p99": 30.0}, "ttft_ms": {"mean": 166.0}, "output_throughput": 2971}
    }
    (seen,) = read_text(json.dumps(simulated), tmp_path)
    assert seen.speed is not None
    assert (seen.speed.token_s, seen.speed.first_s) == (pytest.approx(0.0204), 0.166)
    assert seen.speed.tokens_per_s == 2971


def test_a_stream_is_read_to_its_last_chunk(tmp_path: Path) -> None:
    chunks = [
        {"id": "a", "choices": [{"delta": {"content": "x"}}]},
        {"id": "a", "timings": {"predicted_n": 100, "draft_n": 30, "draft_n_accepted": 10}},
        {"id": "a", "timings": {"predicted_n": 200, "draft_n": 347, "draft_n_accepted": 65}},
    ]
    text = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n"
    (seen,) = read_text(text, tmp_path)
    assert seen.tally is not None
    assert (seen.tally.drafted_tokens, seen.tally.accepted_tokens, seen.tally.steps) == (347, 65, 134)
    with pytest.raises(InputError, match="a stream of 1 chunks without speculative metrics"):
        read_text(f"data: {json.dumps(chunks[0])}\n", tmp_path)


LLAMA_TOOL = """n_draft   = 8
n_predict = 129
n_drafted = 132
n_accept  = 47
accept    = 35.606%

draft:

llama_print_timings: prompt eval time =   363.60 ms /     8 tokens (   45.45 ms per token,    22.00 tokens per second)
llama_print_timings:        eval time = 27360.44 ms /   214 runs   (  127.85 ms per token,     7.82 tokens per second)

target:

llama_print_timings: prompt eval time = 200000.00 ms /   200 tokens
llama_print_timings:        eval time =  20000.00 ms /     8 runs
"""


def test_times_of_llamacpps_two_models_give_c_and_v() -> None:
    (seen,) = read_log(LLAMA_TOOL.splitlines(), "log")
    assert seen.c == pytest.approx(127.85 / 2500, rel=1e-3)
    assert seen.v == pytest.approx(200000 / (129 - 47 - 8) / 2500)


def test_every_translation_takes_its_words_from_the_table() -> None:
    table = {(w.engine, w.name) for w in words()}
    assert len(words()) == len({(w.engine, w.place, w.name, w.meaning) for w in words()})
    assert {w.engine for w in words()} == {"vllm", "sglang", "tensorrt-llm", "llama.cpp"}
    assert ("sglang", "sglang:spec_accept_rate") in table
    assert all(w.meaning and w.ours and w.versions for w in words())


def _without(lines: list[str], rng: random.Random) -> list[str]:
    return [line for line in lines if rng.random() > 0.25] or lines[:1]


def _shuffled(lines: list[str], rng: random.Random) -> list[str]:
    return rng.sample(lines, len(lines))


def _prefixed(lines: list[str], rng: random.Random) -> list[str]:
    mark = rng.choice(["worker-0 | ", "2026-12-01T10:00:00Z ", "    ", "\t"])
    return [mark + line for line in lines]


def _changes(lines: list[str], rng: random.Random) -> list[str]:
    change: Callable[[list[str], random.Random], list[str]] = rng.choice([_without, _shuffled, _prefixed])
    return change(lines, rng)


def test_changed_vllm_logs_are_read_rightly_or_refused() -> None:
    """Order, missing lines, another prefix: what is told of coverage and alpha stays the server's own."""
    rng = random.Random(19)  # noqa: S311 - repeatable changes
    for _ in range(200):
        tokens, drafts, at = rng.choice([FULL, RARE])
        lines = [x for s in range(0, 60, 10) for x in (load_line(tokens, s), draft_line(drafts, 3, at, s))]
        try:
            seen = read_log(_changes(lines, rng), "log")
        except InputError:
            continue
        (one,) = seen
        found = measured(one)
        assert found.alpha.value == pytest.approx(sum(at) / (drafts + at[0] + at[1]), abs=2e-3)
        if found.coverage is not None:
            assert found.coverage == pytest.approx(drafts / (tokens * 10 - sum(at)), rel=0.01)


def test_two_mixed_vllm_servers_are_kept_apart_or_refused() -> None:
    rng = random.Random(20)  # noqa: S311 - repeatable changes
    for _ in range(200):
        pids = rng.random() < 0.3
        shift = rng.choice([0, 3, 5])
        lines = []
        for s in range(0, 60, 10):
            for (tokens, drafts, at), name, later in ((FULL, "a", 0), (RARE, "b", shift)):
                pid = f"(APIServer pid={name}) ".replace("a", "11").replace("b", "22") if pids else ""
                pid = pid.replace("11PIServer", "APIServer")
                lines.append(load_line(tokens, s + later, pid=pid))
                lines.append(draft_line(drafts, 3, at, s + later, pid=pid))
        if rng.random() < 0.5:
            lines = _shuffled(lines, rng)
        try:
            seen = read_log(lines, "log")
        except InputError:
            assert not pids
            continue
        assert pids
        assert len(seen) == 2
        coverages = sorted(measured(o).coverage or 0 for o in seen)
        assert coverages == [pytest.approx(0.054, abs=1e-3), pytest.approx(0.997, abs=2e-3)]


def test_changed_sglang_lines_are_read_rightly_or_refused() -> None:
    rng = random.Random(21)  # noqa: S311 - repeatable changes
    for _ in range(200):
        n = rng.choice([3, 4, 6, 8])
        older = rng.random() < 0.5
        mixed = rng.random() < 0.3
        lengths = [round(1 + rng.random() * (n - 1), 2) for _ in range(8)]
        rates = [x / n if older else (x - 1) / (n - 1) for x in lengths]
        lines = [decode(x, r, s) for s, (x, r) in enumerate(zip(lengths, rates, strict=True))]
        if mixed:
            lines += [decode(x, min(1.0, x / (n + 3)), 30 + s) for s, x in enumerate(lengths)]
        if rng.random() < 0.5:
            lines.append(f"ServerArgs(speculative_num_draft_tokens={n})")
        try:
            (seen,) = read_log(_changes(lines, rng), "log")
        except InputError as error:
            assert mixed or "no line speaks" in str(error)  # noqa: PT017
            continue
        if mixed:
            continue  # what is left may be of one of the two
        found = measured(seen)
        if found.draft_len is not None:
            assert found.draft_len == n - 1


def test_changed_summaries_are_read_rightly_or_refused(tmp_path: Path) -> None:
    rng = random.Random(22)  # noqa: S311 - repeatable changes
    for i in range(200):
        text = rng.choice([BENCH, SCRIPT])
        lines = text.splitlines()
        kind = rng.choice(["order", "missing", "units", "mixed"])
        if kind == "order":
            lines = _shuffled(lines, rng)
        elif kind == "missing":
            lines = _without(lines, rng)
        elif kind == "units":
            lines = [
                x.replace("Drafts:  ", "Drafts: 1.0k #").replace("(s)", "(ms)").replace("266.90", "266900")
                for x in lines
            ]
        else:
            other = [x.replace("1000", "2000").replace("3000", "6000") for x in lines]
            lines = _shuffled(lines + other, rng)
        try:
            seen = read_text("\n".join(lines) + "\n", tmp_path, f"{i}.txt")
        except InputError:
            continue
        if kind == "mixed":
            continue
        for one in seen:
            found = measured(one)
            if found.alpha.value is not None and (
                one.tally is not None or len(found.position_rates_conditional or ()) == 3
            ):
                assert found.alpha.value == pytest.approx(1500 / 2250, abs=0.003)
            if found.tokens_per_drafted_step is not None:
                assert found.tokens_per_drafted_step == pytest.approx(2.5, abs=0.005)
            assert one.window_s in (None, pytest.approx(266.9))
