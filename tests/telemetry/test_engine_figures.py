"""Figures of running engines, translated: the same real run read in three ways, and every engine's own definitions."""

import codecs
import gzip
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.records import StepRecord, StepWriter
from specplan.records.tally import Tally
from specplan.telemetry.logs import read_log
from specplan.telemetry.prometheus import Scrape, between, observations, parse_scrape
from specplan.telemetry.read import read_origin
from specplan.telemetry.responses import read_responses
from specplan.telemetry.rounded import positions_behind, recover_drafts

DATA = Path(__file__).parents[1] / "data"
SERVER = DATA / "vllm_cpu_server"


@pytest.mark.parametrize(
    "name", ["vllm_cpu_server/metrics.txt", "vllm_cpu_server/response.json", "vllm_cpu_startup.log"]
)
def test_one_run_of_a_real_server_reads_the_same_from_metrics_reply_and_log(name: str) -> None:
    (seen,) = read_origin(str(DATA / name))
    tally = seen.tally
    assert tally is not None
    assert (tally.drafts, tally.drafted_tokens, tally.accepted_tokens) == (7, 21, 13)
    assert tally.accepted_histogram == (2, 1, 0, 4)
    assert tally.accepted_at == (5, 4, 4)
    assert tally.tested_tokens == 16
    assert seen.engine == "vllm"


def test_all_steps_come_from_the_latency_count_and_agree_with_the_reply() -> None:
    (page,), (reply,) = (read_origin(str(SERVER / name)) for name in ("metrics.txt", "response.json"))
    assert page.tally is not None
    assert reply.tally is not None
    assert page.tally.steps == reply.tally.steps == 22
    assert page.tally.emitted_tokens == 35  # 36 tokens less the prefill's one
    assert page.step_s == pytest.approx(0.5381979120002143 / 22)
    assert page.mean_batch == pytest.approx(1.0)
    assert [row.accepted for row in reply.steps] == [3, 3, 3, 3, 1, 0, 0]


def test_without_latency_counts_the_steps_follow_from_tokens() -> None:
    text = (SERVER / "metrics.txt").read_text().replace("vllm:inter_token_latency", "vllm:other")
    (seen,) = observations(parse_scrape(text, "x"))
    assert seen.tally is not None
    assert seen.tally.steps == 22
    assert [t.kind for t in seen.translations if t.ours == "steps"] == ["derived"]


def test_the_latency_counts_steps_under_its_older_name() -> None:
    text = (SERVER / "metrics.txt").read_text().replace("inter_token_latency", "time_per_output_token")
    (seen,) = observations(parse_scrape(text, "x"))
    assert seen.tally is not None
    assert seen.tally.steps == 22
    assert seen.step_s == pytest.approx(0.5381979120002143 / 22)
    assert [t.kind for t in seen.translations if t.ours == "steps"] == ["measured"]


@pytest.mark.parametrize("typed", [True, False])
def test_counters_are_known_without_their_ending(typed: bool) -> None:
    def bare(text: str) -> Scrape:
        lines = text.replace("_total", "").splitlines()
        return parse_scrape("".join(x + "\n" for x in lines if typed or not x.startswith("#")), "x")

    first, second = bare(page(10, 30, 12, [6, 4, 2])), bare(page(25, 75, 30, [15, 9, 6]))
    (seen,) = observations(between(first, second)[0])
    assert seen.tally == Tally.of_counters(drafts=15, drafted_tokens=45, accepted_tokens=18, accepted_at=[9, 5, 4])


def test_pages_of_engines_that_do_not_count_drafts() -> None:
    totals = "".join(
        f'vllm:spec_decode_num_{name}_total{{model_name="m"}} {n}\n'
        for name, n in (("draft_tokens", 2082), ("accepted_tokens", 1292))
    )
    (seen,) = observations(parse_scrape(totals, "x"))  # vLLM 0.8 with the V1 engine
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (None, 2082, 1292)
    with pytest.raises(InputError, match="V0 engine"):
        observations(parse_scrape(totals + 'vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 1986\n', "x"))


def page(drafts: float, drafted: float, accepted: float, at: list[float], model: str = "m", engine: str = "0") -> str:
    names = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    labels = f'engine="{engine}",model_name="{model}"'
    lines = [
        f"# TYPE vllm:spec_decode_num_{k} counter\nvllm:spec_decode_num_{k}_total{{{labels}}} {v}"
        for k, v in names.items()
    ]
    lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter")
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {v}' for i, v in enumerate(at)
    ]
    return "\n".join(lines) + "\n"


def test_two_scrapes_give_the_window_between_them() -> None:
    first, second = parse_scrape(page(10, 30, 12, [6, 4, 2]), "a"), parse_scrape(page(25, 75, 30, [15, 9, 6]), "b")
    window, notes = between(first, second)
    (seen,) = observations(window)
    assert seen.tally == Tally.of_counters(drafts=15, drafted_tokens=45, accepted_tokens=18, accepted_at=[9, 5, 4])
    assert notes == ()


def test_a_restart_between_scrapes_counts_from_the_restart_and_says_so() -> None:
    first, second = parse_scrape(page(10, 30, 12, [6, 4, 2]), "a"), parse_scrape(page(5, 15, 3, [2, 1, 0]), "b")
    window, notes = between(first, second)
    (seen,) = observations(window, notes=notes)
    assert seen.tally == Tally.of_counters(drafts=5, drafted_tokens=15, accepted_tokens=3, accepted_at=[2, 1, 0])
    assert any("restarted" in note for note in seen.notes)


CREATED = 'vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} {}\n'


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # drafts fell, the other counters have passed what they were before the restart
        (page(100, 300, 12, [6, 4, 2]), page(30, 90, 40, [20, 12, 8])),
        # all have passed it; only the time at which they began tells
        (page(10, 30, 12, [6, 4, 2]) + CREATED.format(1000), page(30, 90, 40, [20, 12, 8]) + CREATED.format(2000)),
        (
            page(10, 30, 12, [6, 4, 2]) + "process_start_time_seconds 1.7e9\n",
            page(30, 90, 40, [20, 12, 8]) + "process_start_time_seconds 1.8e9\n",
        ),
    ],
)
def test_a_restart_begins_every_counter_of_the_engine_anew(first: str, second: str) -> None:
    other = page(50, 100, 50, [30, 20], model="other"), page(60, 120, 58, [36, 22], model="other")
    window, notes = between(parse_scrape(first + other[0], "a"), parse_scrape(second + other[1], "b"))
    seen = {o.source: o.tally for o in observations(window, notes=notes)}
    since = {"drafts": 30, "drafted_tokens": 90, "accepted_tokens": 40, "accepted_at": [20, 12, 8]}
    assert seen["m"] == Tally.of_counters(**since)
    if "process" not in first:  # another engine on the page goes on
        assert seen["other"] == Tally.of_counters(drafts=10, drafted_tokens=20, accepted_tokens=8, accepted_at=[6, 2])
    assert any("restarted" in note for note in notes)


def test_a_first_scrape_that_is_not_finite_is_no_beginning() -> None:
    first = parse_scrape(page(float("nan"), 30, 12, [6, 4, 2]), "first")
    with pytest.raises(InputError, match=r"^first: .* is not a finite number"):
        between(first, parse_scrape(page(25, 75, 30, [15, 9, 6]), "second"))


def test_ranks_are_summed_and_models_kept_apart() -> None:
    text = page(10, 30, 12, [6, 4, 2]) + page(1, 3, 1, [1, 0, 0], engine="1") + page(4, 8, 2, [2, 0], model="other")
    seen = {o.source: o.tally for o in observations(parse_scrape(text, "x"))}
    assert seen["m"] == Tally.of_counters(drafts=11, drafted_tokens=33, accepted_tokens=13, accepted_at=[7, 4, 2])
    assert seen["other"] == Tally.of_counters(drafts=4, drafted_tokens=8, accepted_tokens=2, accepted_at=[2, 0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (page(10, 30, float("nan"), [6, 4, 2]), "not a finite number"),
        (page(10, 30, 12, [6, 4, float("nan")]), "not a finite number"),
        (page(10, 30, 31, [11, 10, 10]), "contradict"),
        (page(10, 5, 4, [4]), "contradict"),
        (page(10.5, 30, 12, [6, 4, 2]), "whole number"),
        (page(-1, 30, 12, [6, 4, 2]), "whole number"),
        ("\n".join(line for line in page(10, 30, 12, [6]).splitlines() if "draft_tokens" not in line), "draft_tokens"),
        ('vllm:num_requests_running{model_name="m"} 1\n', "--speculative-config"),
        ('sglang:num_running_reqs{model_name="m"} 1\n', "--speculative-algorithm"),
        ("llamacpp:n_decode_total 5\n", "draft_n_accepted"),
        ("node_load1 0.5\n", "no metrics of vLLM, SGLang or llama.cpp"),
        ("vllm:a{b 1\n", "not Prometheus text"),
        ("vllm:a " + "x" * 10**5 + "\n", "not Prometheus text"),
        ("", "no metrics"),
    ],
)
def test_pages_that_cannot_be_used_say_why(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        observations(parse_scrape(text, "page"))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "body",
    [
        page(10, 5, 4, [4]),
        "SpecDecoding metrics: Mean acceptance length: 2.86, Accepted: 3000 tokens, Drafted: 2082 tokens",
        json.dumps({k: 9 - i for i, k in enumerate(("request_throughput", "output_throughput"))})[:-1]
        + ', "spec_decode_num_drafts": 5, "spec_decode_draft_tokens": 3, "spec_decode_accepted_tokens": 9}',
        '{"timings": {"draft_n": 5, "draft_n_accepted": 9}}',
    ],
)
def test_counts_that_contradict_name_their_file_in_one_short_line(body: str, tmp_path: Path) -> None:
    path = tmp_path / "figures"
    path.write_text(body)
    with pytest.raises(InputError, match="contradict") as error:
        read_origin(str(path))
    assert str(error.value).startswith(str(path))
    assert len(str(error.value)) < 250 + len(str(path))


def test_a_page_scraped_within_a_step_keeps_its_totals() -> None:
    (seen,) = observations(parse_scrape(page(10, 30, 12, [6, 4, 1]), "x"))
    assert seen.tally == Tally.of_counters(drafts=10, drafted_tokens=30, accepted_tokens=12)
    assert any("scraped while a step was counted" in note for note in seen.notes)


def test_sglang_gauges_are_means_of_all_steps() -> None:
    text = (
        'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5\n'
        'sglang:spec_accept_length{model_name="m",tp_rank="1"} 2.5\n'
        'sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.5\n'
        'sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 4\n'
        'sglang:spec_num_steps{model_name="m",tp_rank="0"} 3\n'
        'sglang:spec_verify_calls_total{model_name="m"} 50\n'
    )
    (seen,) = observations(parse_scrape(text, "x"))
    assert seen.tally is None
    assert seen.means is not None
    assert (seen.means.tokens_per_step, seen.means.accepted_per_drafted) == (2.5, 0.5)
    assert (seen.means.draft_len, seen.means.chain_len) == (3, 3)


def test_sglang_gauges_of_older_versions_give_their_width() -> None:
    """Versions without the gauge of the draft tokens: 2.31 tokens a step at 4 drafted ones."""
    gauges = f"sglang:spec_accept_length 2.31\nsglang:spec_accept_rate {(2.31 - 1) / 3!r}\n"
    (seen,) = observations(parse_scrape(gauges, "page"))
    assert seen.means is not None
    assert (seen.means.draft_len, seen.means.chain_len) == (3, 3)
    assert any("num_draft_tokens = 4" in note for note in seen.notes)
    (rounded,) = observations(parse_scrape("sglang:spec_accept_length 2.31\nsglang:spec_accept_rate 0.43\n", "page"))
    assert rounded.means is not None
    assert rounded.means.draft_len == 3
    with pytest.raises(InputError, match="under neither rule"):
        observations(parse_scrape("sglang:spec_accept_length 2.31\nsglang:spec_accept_rate 0.47\n", "page"))


def test_sglang_decode_lines_are_weighted_by_running_requests() -> None:
    lines = [
        "[2026-08-19 00:02:25] Decode batch, #running-req: 3, #token: 9, token usage: 0.1, accept len: 2.00, "
        "accept rate: 0.25, cuda graph: True, gen throughput (token/s): 40.29, #queue-req: 0",
        "[2026-08-19 00:02:26] Decode batch, #running-req: 1, #token: 9, token usage: 0.1, accept len: 4.00, "
        "accept rate: 0.75, cuda graph: True, gen throughput (token/s): 40.29, #queue-req: 0",
        "[2026-08-19 00:02:27] Prefill batch, #new-seq: 1",
    ]
    (seen,) = read_log(lines, "log")
    assert seen.means is not None
    assert seen.means.tokens_per_step == pytest.approx(2.5)
    assert seen.means.accepted_per_drafted == pytest.approx(0.375)
    assert seen.means.draft_len == 4  # 1.5 correct drafts per step / 0.375
    assert seen.mean_batch == 2.0


def test_the_width_is_told_only_where_the_lines_leave_one() -> None:
    line = "Decode batch, #running-req: 1, accept len: {}, accept rate: {}, cuda graph: True"
    (one,) = read_log([line.format("2.31", "0.12"), line.format("4.30", "0.30")], "log")
    assert one.means is not None
    assert one.means.draft_len == 11
    (vague,) = read_log([line.format("1.10", "0.01")], "log")
    assert vague.means is not None
    assert vague.means.draft_len is None
    assert any("does not follow" in note for note in vague.notes)
    start = "server_args=ServerArgs(speculative_num_steps=3, speculative_num_draft_tokens=4, x=1)"
    (named,) = read_log([start, line.format("1.10", "0.03")], "log")
    assert named.means is not None
    assert (named.means.draft_len, named.means.chain_len) == (3, 3)


def test_the_steps_of_sglangs_ngram_bound_no_chain(tmp_path: Path) -> None:
    """NGRAM at its defaults has 12 draft tokens and 1 step; a path may be 11 tokens long all the same."""
    log = (
        "ServerArgs(speculative_algorithm='NGRAM', speculative_num_draft_tokens=12, speculative_num_steps=1)",
        "[2026-09-01 10:00:00] Decode batch, #running-req: 3, accept len: 1.50, accept rate: 0.05, cuda graph: True",
    )
    info = {
        "avg_spec_accept_length": 1.5,
        "speculative_algorithm": "NGRAM",
        "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 12,
    }
    path = tmp_path / "info.json"
    path.write_text(json.dumps(info))
    gauges = "sglang:spec_accept_length 2.5\nsglang:spec_num_steps 1\nsglang:spec_num_draft_tokens 12\n"
    seen = [*read_log(log, "log"), *read_origin(str(path)), *observations(parse_scrape(gauges, "page"))]
    assert [o.means.chain_len for o in seen if o.means] == [11, 11, 11]
    eagle = gauges.replace("length 2.5", "length 1.5")
    (bound,) = observations(parse_scrape(eagle, "page"))
    assert bound.means is not None
    assert bound.means.chain_len == 1


def test_sglang_server_information_has_the_lifetime_mean(tmp_path: Path) -> None:
    path = tmp_path / "info.json"
    info = {"speculative_num_draft_tokens": 4, "speculative_num_steps": 3, "model_path": "m"}
    path.write_text(json.dumps(info | {"internal_states": [{"avg_spec_accept_length": 2.533}]}))
    (seen,) = read_origin(str(path))
    assert seen.source == "m"
    assert seen.means is not None
    assert (seen.means.tokens_per_step, seen.means.chain_len) == (2.533, 3)
    path.write_text(json.dumps(info | {"avg_spec_accept_length": "high"}))
    with pytest.raises(InputError, match="avg_spec_accept_length must be a number"):
        read_origin(str(path))


def test_step_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    rows = [
        StepRecord(request="a", step=i, source=s, context_len=9, drafted=3, accepted=i, emitted=i + 1)
        for s in ("ngram", "suffix")
        for i in range(3)
    ]
    with StepWriter(path, {}) as writer:
        writer.write(rows)
    seen = {o.source: o.tally for o in read_origin(str(path))}
    assert seen == {s: Tally.of_steps(r for r in rows if r.source == s) for s in ("ngram", "suffix")}


def test_only_a_command_that_has_strict_names_it(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    row = StepRecord(request="a", step=0, source="s", context_len=9, drafted=3, accepted=2, emitted=3)
    with StepWriter(path, {}) as writer:
        writer.write([row])
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(InputError) as error:
        read_origin(str(path))
    assert "--strict" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics.txt", "response.json"])
def test_a_byte_order_mark_is_no_part_of_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(codecs.BOM_UTF8 + (SERVER / name).read_bytes())
    (seen,), (plain,) = read_origin(str(path)), read_origin(str(SERVER / name))
    assert seen.tally == plain.tally


def test_a_log_of_json_lines_is_a_log(tmp_path: Path) -> None:
    line = next(x for x in (DATA / "vllm_cpu_startup.log").read_text().splitlines() if "SpecDecoding metrics" in x)
    path = tmp_path / "server.jsonl"
    path.write_text(json.dumps({"level": "INFO", "message": line}) + "\n")
    (seen,) = read_origin(str(path))
    assert seen.tally is not None
    assert seen.tally.accepted_at == (5, 4, 4)


def test_a_cut_log_keeps_its_lines_and_says_so(tmp_path: Path) -> None:
    text = (DATA / "vllm_cpu_startup.log").read_text() * 50
    path = tmp_path / "server.log.gz"
    data = gzip.compress(text.encode())
    path.write_bytes(data[: len(data) // 2])
    (seen,) = read_origin(str(path))
    assert any("ends too early" in note for note in seen.notes)
    path.write_bytes(gzip.compress((SERVER / "metrics.txt").read_bytes())[:2000])
    with pytest.raises(InputError, match="cut off"):
        read_origin(str(path))


def test_sglang_response_metadata_has_the_histogram() -> None:
    meta = {
        "completion_tokens": 7,
        "spec_verify_ct": 3,
        "spec_num_correct_drafts": 3,
        "spec_num_proposed_drafts": 21,
        "spec_accept_length": 7 / 3,
        "spec_correct_drafts_histogram": [1, 1, 1],
    }
    (seen,) = read_responses([("r", {"text": "x", "meta_info": meta})], "file")
    assert seen.tally is not None
    assert (seen.tally.steps, seen.tally.drafts, seen.tally.accepted_tokens) == (3, 3, 3)
    assert seen.tally.accepted_at == (2, 1, 0, 0, 0, 0, 0)
    assert seen.tally.tested_at == (3, 2, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "names",
    [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    ],
)
def test_sglang_metadata_of_every_spelling(names: tuple[str, str, str]) -> None:
    values = dict(zip(names, (3, 9, [1, 1, 1]), strict=True))
    response = {"text": "x", "meta_info": {"completion_tokens": 7, "spec_verify_ct": 3, **values}}
    done_at_prefill = {"text": "x", "meta_info": {"completion_tokens": 1, "spec_verify_ct": 0, "spec_accept_length": 0}}
    (seen,) = read_responses([("a", response), ("b", done_at_prefill)], "file")
    assert seen.tally is not None
    assert (seen.tally.steps, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (3, 9, 3)
    assert seen.tally.accepted_at == (2, 1, 0)
    assert (seen.tally.requests, seen.tally.prefills) == (2, 2)


def test_sglang_metadata_with_the_steps_alone() -> None:
    responses = [("a", {"meta_info": {"completion_tokens": n, "spec_verify_ct": s}}) for n, s in ((10, 4), (6, 5))]
    (seen,) = read_responses(responses, "file")
    assert seen.tally is not None
    assert (seen.tally.steps, seen.tally.accepted_tokens, seen.tally.emitted_tokens) == (9, 5, 14)
    assert seen.tally.drafted_tokens is None
    (odd,) = read_responses([("a", {"meta_info": {"completion_tokens": 3, "spec_verify_ct": 5}})], "file")
    assert odd.tally is not None
    assert odd.tally.accepted_tokens is None


def test_llamacpp_timings_do_not_tell_the_number_of_drafts() -> None:
    response = {"timings": {"predicted_n": 16, "draft_n": 12, "draft_n_accepted": 9}}
    (seen,) = read_responses([("r", response)], "file")
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (None, 12, 9)
    assert seen.tally.steps == 6
    assert seen.tally.tested_tokens is None


LLAMA_LOG = """\
slot print_timing: id  0 | task 42 | prompt eval time =     714.79 ms /  1091 tokens (    0.66 ms per token)
slot print_timing: id  0 | task 42 |        eval time =    3133.20 ms /   353 tokens (    8.88 ms per token)
slot print_timing: id  0 | task 42 | draft acceptance = 0.66237 (  257 accepted /   388 generated), \
mean acceptance length =  3.65, acceptance rate per position = (0.804, 0.701, 0.629, 0.515)
"""
LLAMA_TOTALS = (
    "statistics        draft-mtp: #calls(b,g,a) =    2    134    134, #gen drafts =    134, #acc drafts =   109, "
    "#gen tokens =    536, #acc tokens =   354, #mean acc len = 3.64, #acc rate/pos = (0.813, 0.716, 0.619, 0.493), "
    "dur(b,g,a) = 0.004, 808.560, 0.264 ms\n"
)


def test_llamacpp_slot_lines_give_back_their_drafts() -> None:
    (seen,) = read_log(LLAMA_LOG.splitlines(), "log")
    assert seen.tally is not None
    assert seen.tally.drafts == 97
    assert seen.tally.accepted_at == (78, 68, 61, 50)
    assert seen.tally.steps is None  # 353 - 1 - 257 = 95 steps, fewer than drafts: the last draft ran past the end


def test_llamacpp_totals_win_over_single_requests() -> None:
    (seen,) = read_log((LLAMA_LOG + LLAMA_TOTALS).splitlines(), "log")
    assert seen.source == "draft-mtp"
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (134, 536, 354)
    assert seen.tally.accepted_at == (109, 96, 83, 66)
    assert seen.tally.steps == 134


def test_llamacpp_totals_share_the_time_between_drafting_and_verifying() -> None:
    # 134 steps emit 134 + 354 tokens behind the first, in 3 s; "dur" adds up to 808.828 ms of drafting.
    done = (
        "slot print_timing: id  0 | task 42 |        eval time =    3000.00 ms /   489 tokens (    6.13 ms per token)\n"
    )
    (seen,) = read_log((done + LLAMA_TOTALS).splitlines(), "log")
    assert seen.step_s == pytest.approx(3.0 / 134)
    assert seen.draft_share == pytest.approx(0.808828 / 3.0)


@given(
    drafts=st.integers(1, 9),
    rates=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.35, 0.4, 0.5, 0.6, 0.75, 1.0]), min_size=2, max_size=3),
    accepted=st.integers(0, 27),
    digits=st.integers(1, 2),
    missing=st.integers(0, 1),
)
@settings(max_examples=400)
def test_counts_behind_rounded_rates_are_those_that_can_be(
    drafts: int, rates: list[float], accepted: int, digits: int, missing: int
) -> None:
    """All whole counts are tried: what is left bounds the tested tokens, and where none is, the figures are refused."""
    fitting = [[n for n in range(drafts + 1) if abs(n / drafts - rate) <= 0.5000001 * 10**-digits] for rate in rates]
    behind = [
        range(max(fitting[-1], default=-1) + 1)
    ] * missing  # no position is accepted more often than the one before
    can_be = [counts for counts in product(*fitting, *behind) if sum(counts) == accepted]
    if not can_be:
        with pytest.raises(InputError, match="the rates by position belong to"):
            positions_behind(drafts, drafts * (len(rates) + missing), accepted, rates, digits)
        return
    _, tested = positions_behind(drafts, drafts * (len(rates) + missing), accepted, rates, digits)
    all_tested = [drafts + sum(counts[:-1]) for counts in can_be]
    assert tested is not None
    assert tested[0] <= min(all_tested)
    assert max(all_tested) <= tested[1]
    if not missing:
        assert tested == (min(all_tested), max(all_tested))


def test_old_llamacpp_lines_give_totals_only() -> None:
    (seen,) = read_log(["draft acceptance rate = 0.57576 (  171 accepted /   297 generated)"], "log")
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (None, 297, 171)


LINES_OF_VERSIONS = {
    "0.8.2": "Speculative metrics: Draft acceptance rate: 0.621, Number of accepted tokens: 1292, "
    "Number of draft tokens: 2082, ",
    "0.8.4": "SpecDecoding metrics: Draft acceptance rate: 62.1%, Accepted: 1292 tokens, Drafted: 2082 tokens",
    "0.9": "SpecDecoding metrics: Draft acceptance rate: 62.1%, Mean acceptance length: 2.86, Accepted: 1292 tokens, "
    "Drafted: 2082 tokens, Per-position acceptance rate: 0.723, 0.604, 0.535",
    "0.10": "SpecDecoding metrics: Mean acceptance length: 2.86, Accepted throughput: 129.20 tokens/s, Drafted "
    "throughput: 208.20 tokens/s, Accepted: 1292 tokens, Drafted: 2082 tokens, Per-position acceptance rate: "
    "0.723, 0.604, 0.535, Avg Draft acceptance rate: 62.1%",
}


@pytest.mark.parametrize("version", LINES_OF_VERSIONS)
def test_lines_of_every_vllm_with_the_v1_engine_are_read(version: str, tmp_path: Path) -> None:
    idle = "SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens"
    path = tmp_path / "server.log"
    path.write_text("".join(f"INFO 04-02 18:03:41 [metrics.py:53] {x}\n" for x in (idle, LINES_OF_VERSIONS[version])))
    (seen,) = read_origin(str(path))
    assert seen.tally is not None
    assert (seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (2082, 1292)
    per_draft = version in ("0.9", "0.10")
    assert seen.tally.drafts == (694 if per_draft else None)
    assert seen.tally.accepted_at == ((502, 419, 371) if per_draft else None)
    assert not any("incomplete" in note for note in seen.notes)


@pytest.mark.parametrize("end", [30, 150, 175, 215, 222, 240])
def test_a_line_that_was_cut_off_takes_nothing_from_the_others(end: int) -> None:
    line = LINES_OF_VERSIONS["0.10"]
    (seen,) = read_log([line, line[:end]], "log")
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.accepted_tokens) == (694, 1292)
    assert any("incomplete" in note for note in seen.notes)


def test_the_totals_of_vllms_v0_engine_count_no_verdict_behind_a_rejection() -> None:
    line = (
        "INFO 02-11 14:50:38 metrics.py:477] Speculative metrics: Draft acceptance rate: 0.550, System efficiency: "
        "0.133, Number of speculative tokens: 8, Number of accepted tokens: 44, Number of draft tokens: 80, Number of "
        "emitted tokens: 12."
    )
    (seen,) = read_log([line.replace("80", "40").replace("12.", "6."), line], "log")
    assert seen.tally is not None
    # 10 drafts of 8 led to 12 tokens, 10 of them the target's own: 44 verdicts were yes, 2 tokens were accepted
    assert (seen.tally.drafts, seen.tally.drafted_tokens, seen.tally.accepted_tokens) == (10, 80, 2)
    with pytest.raises(InputError, match="contradict"):
        read_log([line.replace("emitted tokens: 12", "emitted tokens: 9")], "log")


def test_intervals_without_a_draft_are_no_figures() -> None:
    with pytest.raises(InputError, match="intervals without a draft"):
        read_log(["SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens"], "log")


def test_counters_of_llamacpps_tools() -> None:
    log = (
        "decoded  203 tokens in    2.500 seconds, speed:   81.200 t/s\nn_draft   = 16\nn_predict = 203\n"
        "n_drafted = 267\nn_accept  = 171\naccept    = 64.045%\n"
    )
    (seen,) = read_log(log.splitlines(), "log")
    assert seen.tally is not None
    assert (seen.tally.drafted_tokens, seen.tally.accepted_tokens, seen.tally.emitted_tokens) == (267, 171, 203)
    assert seen.tally.steps == 32  # each pass emits one token of its own
    assert seen.tally.drafts is None


LLAMACPP = {"llamacpp:n_drafted_total": 267, "llamacpp:n_accepted_total": 171}


def _page(counters: dict[str, int]) -> Scrape:
    return parse_scrape("".join(f"# TYPE {n} counter\n{n} {v}\n" for n, v in counters.items()), "page")


def test_counters_of_a_llamacpp_page() -> None:
    (seen,) = observations(_page(LLAMACPP))
    assert seen.tally is not None
    assert (seen.tally.drafted_tokens, seen.tally.accepted_tokens, seen.tally.drafts) == (267, 171, None)


def test_counters_without_an_accepted_count_are_refused() -> None:
    with pytest.raises(InputError, match="is missing beside llamacpp:n_drafted_total"):
        observations(_page({name: n for name, n in LLAMACPP.items() if "accept" not in name}))


def test_an_address_without_its_scheme_is_told_from_a_file() -> None:
    with pytest.raises(InputError, match="write http://localhost:8000/metrics"):
        read_origin("localhost:8000/metrics")


def test_a_log_without_speculation_says_what_was_expected() -> None:
    with pytest.raises(InputError, match="SpecDecoding metrics"):
        read_log(["INFO Application startup complete."], "log")


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=400),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_the_drafts_behind_a_printed_line_are_among_those_recovered(
    accepted: list[int], equal_lengths: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = np.array(accepted)
    drafted = np.full(len(a), 5) if equal_lengths else rng.integers(np.maximum(a, 1), 6)
    at = [int((a > i).sum()) for i in range(5)]
    found = recover_drafts(
        float(f"{1 + a.sum() / len(a):.2f}"),
        int(a.sum()),
        int(drafted.sum()),
        [float(f"{n / len(a):.3f}") for n in at],
    )
    assert found is not None
    assert found.low <= len(a) <= found.high
    if equal_lengths:
        assert found.drafts == len(a)
        assert found.accepted_at is not None
        assert sum(found.accepted_at) == a.sum()
        assert np.abs(np.subtract(found.accepted_at, at)).max() <= 0.0005 * len(a) + 1


def test_bench_results_give_the_window_of_the_benchmark(tmp_path: Path) -> None:
    result = {
        "model_id": "llama3-8b",
        "completed": 4,
        "duration": 12.5,
        "total_output_tokens": 100,
        "request_throughput": 1.0,
        "output_throughput": 8.0,
        "spec_decode_acceptance_rate": 100 * 24 / 36,
        "spec_decode_acceptance_length": 1 + 24 / 12,
        "spec_decode_num_drafts": 12,
        "spec_decode_draft_tokens": 36,
        "spec_decode_accepted_tokens": 24,
        "spec_decode_per_position_acceptance_rates": [1.0, 8 / 12, 4 / 12],
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result))
    (seen,) = read_origin(str(path))
    assert seen.tally is not None
    assert seen.tally.accepted_at == (12, 8, 4)
    assert seen.tally.steps == 72
    assert seen.window_s == 12.5
    means_only = {k: v for k, v in result.items() if not k.endswith(("num_drafts", "_tokens"))}
    path.write_text(json.dumps(means_only))
    (seen,) = read_origin(str(path))
    assert seen.tally is None
    assert seen.means is not None
    assert seen.means.tokens_per_drafted_step == 3.0
    assert seen.means.accepted_per_drafted == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {f"spec_decode_{k}": None for k in ("acceptance_length", "num_drafts", "draft_tokens", "accepted_tokens")},
            "benchmark result without spec_decode_acceptance_length",
        ),
        ({"spec_decode_acceptance_length": "3"}, "must be a number"),
        ({"spec_decode_accepted_tokens": 99}, "contradict"),
        ({"spec_decode_per_position_acceptance_rates": [2.0]}, r"in \[0, 1\]"),
    ],
)
def test_broken_bench_results_say_why(tmp_path: Path, change: dict, says: str) -> None:
    result = {"request_throughput": 1.0, "output_throughput": 8.0, "spec_decode_acceptance_length": 3.0}
    result |= {"spec_decode_num_drafts": 12, "spec_decode_draft_tokens": 36, "spec_decode_accepted_tokens": 24}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result | change))
    with pytest.raises(InputError, match=says):
        read_origin(str(path))


def metrics_object(**change: object) -> dict:
    base = {
        "num_spec_steps": 3,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [1, 1, 1],
        "per_step_accepted": [0, 1, 2],
        "per_step_drafted": [2, 2, 2],
    }
    return {"metrics": {"speculative_decoding": base | change}}


@pytest.mark.parametrize(
    "change",
    [
        {"num_spec_steps": -1},
        {"num_spec_steps": True},
        {"num_draft_tokens": "6"},
        {"per_step_accepted": [0, 1]},
        {"per_step_accepted": [0, 1, 3]},
        {"per_step_accepted": [3, 0, 0]},
        {"per_step_drafted": [2, 2, 3]},
        {"per_step_accepted": None, "acceptance_histogram": [1, 1, 2]},
        {"per_step_accepted": None, "num_accepted_draft_tokens": 4},
    ],
)
def test_metrics_objects_that_contradict_themselves_are_refused(change: dict) -> None:
    with pytest.raises(InputError, match="line 7"):
        read_responses([("line 7", metrics_object(**change))], "file")


def test_json_lines_of_responses_are_pooled_by_request(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    rows = [metrics_object(), metrics_object(), {"id": "no metrics"}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    (seen,) = read_origin(str(path))
    assert seen.tally is not None
    assert (seen.tally.requests, seen.tally.drafts, seen.tally.accepted_tokens) == (2, 6, 6)
    assert seen.tally.clusters is not None
    assert seen.tally.clusters.n == 2
    assert any("1 responses without" in note for note in seen.notes)
    path.write_text(json.dumps(rows[0]) + "\n[1]\n")
    with pytest.raises(InputError, match=":2: expected a JSON object"):
        read_origin(str(path))
    path.write_text(json.dumps(rows[0]) + "\n{broken\n")
    with pytest.raises(InputError, match=":2: not JSON"):
        read_origin(str(path))


@pytest.mark.parametrize(
    ("body", "says"),
    [("", "empty"), ("<!DOCTYPE html><html>", "HTML"), ("[]", "no response has"), ("{}", "no response has")],
)
def test_files_that_are_no_figures_say_so(tmp_path: Path, body: str, says: str) -> None:
    path = tmp_path / "file"
    path.write_text(body)
    with pytest.raises(InputError, match=says):
        read_origin(str(path))
    with pytest.raises(InputError, match="no such file"):
        read_origin(str(tmp_path / "absent"))
