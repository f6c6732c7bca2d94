"""The library as its users see it: names, arguments, answers, documents, errors and types."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import specplan
from specplan.cli.app import main

PUBLIC = {
    "blocks": "target accelerator draft source gpu_memory engine engine_version tp pp expert_parallel dtype "
    "quantization kv_cache_dtype gpu_memory_utilization mem_fraction_static max_model_len "
    "max_num_seqs max_num_batched_tokens block_size enforce_eager kappa speculative_config "
    "speculative_algorithm speculative_draft speculative_num_steps speculative_eagle_topk "
    "speculative_num_draft_tokens weights flags",
    "capacity": "target accelerator rate input_len output_len sources quantization tp ttft tpot e2e price "
    "burstiness requests seeds warmup kappa max_model_len max_num_seqs max_num_batched_tokens "
    "engine layer jobs on checkpoint progress",
    "compare": "target accelerator sources quantization tp batch context_len kappa max_kappa engine "
    "engine_version layer measured kv_cache_dtype gpu_memory_utilization workspace price detail",
    "cost": "target accelerator draft source quantization tp draft_tp kappa alpha batch context_len "
    "max_model_len engine engine_version gpu_memory_utilization memory_source workspace "
    "kv_cache_dtype",
    "load_accelerator": "name_or_path",
    "load_model": "name_or_path endings",
    "plane": "target accelerator sources draft alpha c kappa quantization tp batch context_len kind x_max "
    "c_max log_c levels cells engine layer measured kv_cache_dtype ridge",
    "read_source": "text kappa",
    "schedule": "target accelerator source quantization tp context_len max_batch max_kappa margin engine "
    "engine_version layer measured kv_cache_dtype gpu_memory_utilization temperature target_path "
    "draft_path",
    "simulate": "target accelerator sources quantization tp rate burstiness concurrency turnaround trace "
    "trace_rate leave_out_refused input_len output_len requests seeds seed warmup ttft tpot e2e "
    "kappa max_model_len max_num_seqs max_num_batched_tokens block_size enable_prefix_caching "
    "long_prefill_token_threshold num_gpu_blocks_override engine engine_version layer measured "
    "steps kv_cache_dtype gpu_memory_utilization replicas routing keep progress",
    "tie": "a b target accelerator alpha kappa quantization tp batch context_len engine layer measured "
    "kv_cache_dtype ridge",
    "tune": "target accelerator sources draft alpha c quantization tp batch context_len max_kappa compared "
    "engine layer measured kv_cache_dtype ridge",
}
"""What is announced: a name or an argument that goes, comes or moves is told in CHANGELOG.md, and then here."""


def test_every_public_function_has_the_announced_arguments() -> None:
    functions = {name for name in specplan.__all__ if inspect.isfunction(getattr(specplan, name))}
    assert functions == set(PUBLIC)
    for name, arguments in PUBLIC.items():
        assert " ".join(inspect.signature(getattr(specplan, name)).parameters) == arguments, name


def test_importing_specplan_imports_nothing_heavy() -> None:
    code = "import sys, specplan; print(sorted({'numpy', 'pydantic', 'typer', 'rich', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


SAME = [
    (
        lambda: specplan.cost("llama3-70b", "h100-sxm", draft="llama3.2-1b", tp=4, alpha=0.7),
        "cost llama3-70b --draft llama3.2-1b --gpu h100-sxm --tp 4 --alpha 0.7",
    ),
    (lambda: specplan.blocks("llama3-8b", "l40s", draft="llama3.2-1b", kappa=3, max_model_len="8k"),
     "blocks llama3-8b --gpu l40s --draft llama3.2-1b -k 3 --max-model-len 8k"),
    (lambda: specplan.compare("llama3-8b", sources=["ngram:alpha=.6"], batch=[1, 8], context_len=[2048]),
     "compare llama3-8b -s ngram:alpha=.6 --batch 1,8 --context 2048"),
    (lambda: specplan.schedule("llama3-8b", source="ngram:alpha=.7", context_len=[2048]),
     "schedule llama3-8b --source ngram:alpha=.7 --context 2048"),
    (lambda: specplan.plane(["llama3-8b"], sources=["llama3.2-1b:alpha=.7"], kappa=3),
     "plane llama3-8b -s llama3.2-1b:alpha=.7 -k 3"),
    (lambda: specplan.tune("llama3-8b", sources=["ngram:alpha=.7"]), "tune llama3-8b -s ngram:alpha=.7"),
    (lambda: specplan.capacity("llama3-8b", ["h100-sxm"], rate=4.0, input_len="500", output_len="100", requests=150,
                               tp=[1], sources=["none"], ttft=[], tpot=["p95=30ms"], e2e=[], price=[]),
     "capacity llama3-8b --rate 4 --input 500 --output 100 -n 150 --tpot p95=30ms"),
    (lambda: specplan.simulate("llama3-8b", rate=2.0, input_len="500", output_len="100", requests=60, sources=["none"],
                               ttft=["p95=1s"], tpot=[], e2e=[]),
     "simulate llama3-8b --rate 2 --input 500 --output 100 -n 60 --ttft p95=1s"),
    (lambda: specplan.tie("mine:c=.165,alpha=.7", "ngram"), "tie mine:c=.165,alpha=.7 ngram"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "line"), SAME, ids=[line.split()[0] for _, line in SAME])
def test_an_answer_is_the_document_of_its_command_and_shows_itself(ask, line, capsys) -> None:
    answer = ask()
    with pytest.raises(SystemExit):
        main([*line.split(), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(answer.to_dict())) == printed
    assert len(repr(answer)) < 300
    assert "<table>" in answer._repr_html_()
    assert "<script" not in answer._repr_html_()
    names = set(inspect.signature(getattr(specplan, line.split()[0])).parameters)
    names.discard("progress")
    assert names <= set(printed["inputs"]), "a document states every input"


def test_objects_answer_as_their_names_do() -> None:
    model, card = specplan.load_model("llama3-8b"), specplan.load_accelerator("l40s")
    source = specplan.read_source("ngram:alpha=.6")
    by_object = specplan.compare(model, card, sources=[source])
    by_name = specplan.compare("llama3-8b", "l40s", sources="ngram:alpha=.6")
    assert [c.speedup for c in by_object.cells] == [c.speedup for c in by_name.cells]


@pytest.mark.parametrize(
    ("ask", "says", "leaves_out"),
    [
        (lambda: specplan.compare("llama3-8b", sources="ngram:alpha=.6", kappa=0), "kappa", "--"),
        (lambda: specplan.plane(sources="ngram:alpha=.6", batch=0), "batch=0", "--"),
        (lambda: specplan.cost("llama3-70", "h100-sxm"), "did you mean llama3-70b", "--"),
        (lambda: specplan.tune(c="x"), "c", "--"),
    ],
)
def test_errors_name_arguments(ask, says, leaves_out) -> None:
    with pytest.raises(specplan.SpecplanError) as raised:
        ask()
    assert says in str(raised.value)
    assert leaves_out not in str(raised.value)


def test_a_plane_plots_itself() -> None:
    figure = specplan.plane("llama3-8b", sources="llama3.2-1b:alpha=.7").plot()
    assert figure.axes


USER = """
from specplan import blocks, compare, cost, load_accelerator, load_model, plane, schedule, tie, tune

found = cost("llama3-70b", "h100-sxm", draft=load_model("llama3.2-1b"), tp=4, alpha=0.7)
speedup: float | None = found.speedup
document: dict[str, object] = found.to_dict()
verdicts: list[str] = [cell.verdict for cell in compare("llama3-8b", sources=["ngram:alpha=.6"], batch=[1, 8]).cells]
starts: bool = blocks("llama3-8b", load_accelerator("l40s"), kappa=3, draft="llama3.2-1b").starts
reachable: bool = tie("mine:c=.1,alpha=.7", "ngram").is_reachable
"""


@pytest.mark.slow
def test_a_users_file_passes_mypy_strict_against_the_wheel(tmp_path: Path) -> None:
    import zipfile

    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(root)]
    subprocess.run(build, check=True, capture_output=True)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    assert (tmp_path / "site/specplan/py.typed").is_file()
    away = tmp_path / "away"
    away.mkdir()
    (away / "user.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"],
        cwd=away, env={"MYPYPATH": str(tmp_path / "site"), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stdout.splitlines() if line.startswith("user.py")]
    assert not ours, done.stdout
    (away / "user.py").write_text(USER.replace("speedup: float | None", "speedup: str"))
    wrong = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"],
        cwd=away, env={"MYPYPATH": str(tmp_path / "site"), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "user.py:5: error" in wrong.stdout
