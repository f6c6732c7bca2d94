import json

import pytest

from specplan.cli.app import main

LOAD = ["--input", "800", "--output", "60", "-n", "200"]


def run(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    done = capsys.readouterr()
    return stop.value.code, done.out, done.err


def test_simulate_prints_one_document_whose_bytes_are_the_seeds(capsys):
    args = ["simulate", "llama3.1-8b", "--rate", "5", *LOAD, "-s", "none", "-s", "ngram:alpha=.7,k=3", "--json"]
    code, out, _ = run(capsys, *args)
    document = json.loads(out)
    assert code == 0
    assert [s["source"] for s in document["sources"]] == ["none", "ngram:alpha=.7,k=3"]
    plain, drafted = document["sources"]
    assert plain["accepted_length"]["mean"] == 1
    assert drafted["latencies_s"]["tpot"]["mean"]["mean"] < plain["latencies_s"]["tpot"]["mean"]["mean"]
    assert run(capsys, *args)[1] == out


def test_simulate_writes_requests_steps_and_a_picture(capsys, tmp_path):
    files = {o: tmp_path / n for o, n in (("--per-request", "r.csv"), ("--chrome-trace", "t.json"), ("-o", "q.svg"))}
    options = [x for option, path in files.items() for x in (option, str(path))]
    code, out, _ = run(capsys, "simulate", "llama3.1-8b", "--concurrency", "8", *LOAD, *options)
    assert code == 0
    assert "TTFT p95" in out
    rows = files["--per-request"].read_text().splitlines()
    assert len(rows) == 201
    events = json.loads(files["--chrome-trace"].read_text())["traceEvents"]
    assert {"M", "X", "C"} <= {e["ph"] for e in events}
    assert sum(e["name"] == "decode" and e["pid"] == 2 for e in events) == 200
    assert "<svg" in files["-o"].read_text()


def test_targets_decide_the_exit_code(capsys):
    args = ["simulate", "llama3.1-8b", "--rate", "2", *LOAD]
    assert run(capsys, *args, "--tpot", "p95=50ms")[0] == 0
    assert run(capsys, *args, "--tpot", "p95=1ms")[0] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rate", "0", *LOAD], "--rate 0"),
        (["--rate", "nan", *LOAD], "--rate nan"),
        (["--rate", "2"], "--input and --output"),
        (["--rate", "2", "--concurrency", "3", *LOAD], "one of --rate"),
        (["--rate", "2", "--input", "9k", "--output", "5"], "exceed the model's length of 8192"),
        (["--rate", "2", *LOAD, "--ttft", "500"], "no unit"),
        (["--rate", "2", *LOAD, "--num-gpu-blocks-override", "20"], "can never fit"),
        (["--rate", "2", *LOAD, "--engine", "llama.cpp"], "the schedulers of vllm and sglang"),
        (["--rate", "2", *LOAD, "-s", "ngram:k=3"], "acceptance is not given"),
        (["--trace", "missing.csv"], "missing.csv"),
        (["--rate", "2", *LOAD, "--per-request", "r.txt"], "must end in .csv"),
        (["--rate", "2", *LOAD, "--seeds", "0"], "--seeds 0"),
    ],
)
def test_bad_input_is_one_line(capsys, options, says):
    code, out, err = run(capsys, "simulate", "llama3.1-8b", *options)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_capacity_answers_and_exits_with_1_when_nothing_reaches(capsys):
    args = ["capacity", "llama3.1-8b", "--rate", "10", *LOAD, "--tpot", "p95=30ms", "--ttft", "p95=500ms"]
    code, out, _ = run(capsys, *args, "--price", "h100-sxm=2.5", "--json")
    (one,) = json.loads(out)["candidates"]
    assert code == 0
    assert one["rate"] > 1
    assert one["cost_per_million"] > 0
    code, out, _ = run(capsys, "capacity", "llama3.1-8b", "--rate", "10", *LOAD, "--tpot", "p95=1ms")
    assert code == 1
    assert "nothing reaches" in out


def test_the_shipped_trace_is_served(capsys):
    code, out, _ = run(capsys, "simulate", "llama3.1-8b", "--trace", "chat", "--json")
    assert code == 0
    assert json.loads(out)["inputs"]["requests"] == 600
