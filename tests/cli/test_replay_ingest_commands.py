"""`specplan replay` and `specplan ingest` as a user runs them."""

import json
from pathlib import Path

import pytest

from specplan.cli.app import main

DATA = Path(__file__).parents[1] / "data"
METRICS = str(DATA / "vllm_cpu_server" / "metrics.txt")
TRACE = str(DATA / "vllm_cpu_traces" / "ngram25_k3_t0.json")


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(list(args))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    return json.loads(out)


def test_replay_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "replay", TRACE, "--response-field", "emitted_token_ids", "--source", "ngram:min=2,max=5,k=3"
    )
    assert found["schema_version"] == 1
    assert found["command"] == "replay"
    for key in ("inputs", "assumptions", "not_modeled", "provenance"):
        assert found[key]
    (source,) = found["sources"]
    assert source["source"] == "ngram:min=2,max=5,k=3"
    assert source["spelling"] == "ngram:min=2,max=5,k=3,rule=vllm-v1"
    assert (source["steps"], source["prefills"]) == (1994, 20)
    assert (source["drafts"], source["drafted_tokens"], source["accepted_tokens"]) == (694, 2082, 1292)
    assert source["accepted_per_position"] == [502, 419, 371]
    assert source["accepted_histogram"] == [192, 83, 48, 371]
    assert source["alpha_low"] < source["alpha"] < source["alpha_high"]
    assert source["accepted_per_drafted"] == pytest.approx(1292 / 2082)
    assert {tag["tag"]: tag["drafts"] for tag in source["tags"]} == {"copy": 367, "open": 327}


def test_replay_of_the_shipped_trace_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "replay", "smollm2", "-s", "ngram:min=2,max=5,k=3", "-s", "suffix", "-s", "sglang-ngram:budget=8"
    )
    assert code == 0
    for word in ("83 requests", "copy", "open", "sglang-ngram:budget=8", "alpha by position", "measured"):
        assert word in out


def test_replay_places_sources_on_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "replay", "smollm2", "--grid", "ngram:min=2,max=5,k=1|3|5", "--target", "llama3-8b", "--batch", "64"
    )
    speeds = {s["source"]: s["point"]["speedup"] for s in found["sources"]}
    yields = {s["source"]: s["tokens_per_step"] for s in found["sources"]}
    assert found["best_by_modelled_time"] == max(speeds, key=lambda name: speeds[name])
    assert found["best_by_tokens_per_step"] == max(yields, key=lambda name: yields[name])
    for source in found["sources"]:
        point = source["point"]
        assert point["speedup"] == pytest.approx(source["tokens_per_step"] / point["step_cost"])
        assert point["pays"] == (point["speedup"] > 1)


def test_the_served_model_may_be_in_another_format(capsys: pytest.CaptureFixture[str]) -> None:
    of = ("--target", "llama3-8b", "--batch", "256")
    for command in (("replay", "smollm2", "-s", "ngram"), ("ingest", METRICS)):
        plain, fp8 = (document(capsys, *command, *of, *asked) for asked in ((), ("--quantization", "fp8")))
        assert [d.pop("inputs")["quantization"] for d in (plain, fp8)] == [None, "fp8"]
        assert json.dumps(plain) != json.dumps(fp8)
        code, _, said = run(capsys, *command, "--quantization", "fp8")
        assert (code, said.count("\n")) == (2, 1)
        assert "--target" in said


def test_replay_alert_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shift.jsonl"
    repeating = [[1, 2, 3, 4] * 10, [1, 2, 3, 4] * 10]
    with path.open("w") as file:
        for i in range(120):
            prompt, response = repeating if i < 80 else [list(range(40)), list(range(100 + i, 140 + i))]
            noise = [1000 + i, 1001 + i] if i % 3 == 0 else []
            file.write(json.dumps({"prompt_token_ids": prompt, "output_token_ids": response + noise}) + "\n")
    spelled = ("replay", str(path), "-s", "ngram:min=2,max=3,k=3", "--window", "8")
    code, out, err = run(capsys, *spelled, "--alert", "20%")
    assert code == 1
    assert "alert: ngram:min=2,max=3,k=3: accepted tokens per step fell by" in err
    assert "at request 80" in err
    assert "fell by" in out
    assert run(capsys, "replay", "smollm2", "-s", "ngram:min=2,max=5,k=3", "--alert", "90%")[0] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("replay", "smollm2"), "no source to replay"),
        (("replay", "absent.jsonl", "-s", "suffix"), "no file matches"),
        (("replay", "smollm2", "-s", "ngrm"), "did you mean ngram"),
        (("replay", "smollm2", "-s", "suffix", "--on", "moon"), "local or ray"),
        (("replay", "smollm2", "-s", "suffix", "--target", "llama9"), "llama9"),
        (("replay", "smollm2", "-s", "suffix", "--alert", "x"), "--alert"),
        (("ingest", "absent.txt"), "absent.txt: cannot be read: no such file, expected a metrics page"),
        (("ingest", "http://127.0.0.1:1/metrics", "--timeout", "1"), "cannot read"),
        (("ingest", METRICS, "--interval", "1"), "--interval"),
        (("ingest", METRICS, "--batch", "0", "--target", "llama3-8b"), "--batch 0"),
        (("ingest", METRICS, "--c", "-1", "--target", "llama3-8b"), "--c -1"),
        (("ingest", METRICS, "--c", "nan", "--target", "llama3-8b"), "--c nan"),
        (("ingest", METRICS, "--records", METRICS), "name another file"),
        # names that no file can have
        (("replay", "a" * 300, "-s", "suffix"), "no file matches"),
        (
            ("replay", "smollm2", "-s", "suffix", "--records", "a" * 300),
            "cannot be written: File name too long; write it elsewhere",
        ),
        (
            ("replay", "smollm2", "-s", "suffix", "--per-request", "a" * 300),
            "cannot be written: File name too long; write it elsewhere",
        ),
        (
            ("replay", "smollm2", "-s", "suffix", "--checkpoint", "a" * 300),
            "cannot be written: File name too long; write it elsewhere",
        ),
        (
            ("replay", "smollm2", "-s", "suffix", "--tokenizer", "a" * 300),
            "cannot be read: File name too long, expected a",
        ),
        (("ingest", "a" * 300), "cannot be read: File name too long, expected a metrics page"),
        (("ingest", METRICS, "--before", "a" * 300), "cannot be read: File name too long, expected one whole"),
        (("ingest", METRICS, "--records", "a" * 300), "cannot be written: File name too long; write it elsewhere"),
        (("ingest", "a\0b"), "null byte"),
    ],
)
def test_wrong_calls_are_one_line_and_exit_with_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("specplan: ")
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_strict_replay_names_the_line_and_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}\n{"prompt_token_ids": [-1]}\n')
    code, out, err = run(capsys, "replay", str(path), "-s", "ngram", "--strict")
    assert (code, out) == (2, "")
    assert f"{path}:2: " in err
    assert "leave out --strict" in err
    assert run(capsys, "replay", str(path), "-s", "ngram")[0] == 0


def test_ingest_prints_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    chapter = ("--layer", "roofline", "--context", "0")
    found = document(capsys, "ingest", METRICS, "--target", "llama3-8b", "--draft", "llama3.2-1b", *chapter)
    (source,) = found["sources"]
    replayed = document(capsys, "replay", "smollm2", "-s", "suffix")["sources"][0]
    shared = set(replayed) - {"tags", "spelling", "host_s_per_step", "point", "drift"}
    assert {k for k in shared if "series" not in k} <= set(source)
    assert (source["steps"], source["drafts"], source["accepted_tokens"]) == (22, 7, 13)
    assert source["alpha"] == 0.8125
    names = [t["name"] for t in source["translations"]]
    assert "vllm:spec_decode_num_drafts_total" in names
    assert all(t["meaning"] and t["ours"] and t["kind"] in ("measured", "derived") for t in source["translations"])
    assert source["point"]["c"] == pytest.approx(0.1647, abs=1e-4)
    assert source["point"]["c_origin"] == "derived"
    assert source["point"]["observed_step_s"] == pytest.approx(0.02446, abs=1e-5)


def test_ingest_shows_definitions_and_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ingest", METRICS, "--target", "llama3-8b", "--draft", "llama3.2-1b")
    assert code == 0
    for word in (
        "request-steps",
        "does not pay: ",
        "by the observed step",
        "break-even",
        "expected (derived)",
        "observed (measured)",
    ):
        assert word in out


def test_ingest_of_steps_writes_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from specplan.records import Tally, read_steps

    path = tmp_path / "steps.jsonl"
    response = str(DATA / "vllm_cpu_server" / "response.json")
    assert run(capsys, "ingest", response, "--records", str(path))[0] == 0
    assert Tally.of_steps(read_steps(path)).accepted_histogram == (2, 1, 0, 4)


@pytest.mark.parametrize(
    ("spelled", "short"),
    [
        ("llama3.2-1b", ("--draft", "llama3.2-1b")),
        ("mine:c=.05", ("--c", "0.05")),
        ("ngram", ("--c", "0")),
    ],
)
def test_ingest_takes_a_source_as_every_command_does(
    capsys: pytest.CaptureFixture[str], spelled: str, short: tuple[str, ...]
) -> None:
    at = ("ingest", METRICS, "--target", "llama3-8b")
    (long,), (brief,) = (document(capsys, *at, *how)["sources"] for how in (("-s", spelled), short))
    assert long["point"] == brief["point"]
