"""The whole tree: lint, types, direction of imports, and a wheel that works away from the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*argv: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def passes(*argv: str) -> None:
    done = run(sys.executable, "-m", *argv)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint() -> None:
    passes("ruff", "check", ".")


def test_format() -> None:
    passes("ruff", "format", "--check", ".")


def test_types() -> None:
    passes("mypy")


def test_imports_go_one_way() -> None:
    done = run(str(Path(sys.executable).with_name("lint-imports")))
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_carries_every_yaml_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("model_specs", "hardware_profiles"):
        shipped = {f"specplan/data/{folder}/{path.name}" for path in (ROOT / folder).glob("*.yaml")}
        assert shipped
        assert shipped <= names


def test_the_wheel_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    away = tmp_path / "away"
    away.mkdir()
    env = os.environ | {"PYTHONPATH": str(site)}
    where = run(sys.executable, "-c", "import specplan; print(specplan.__file__)", cwd=away, env=env)
    assert where.stdout.strip() == str(site / "specplan" / "__init__.py")
    done = run(
        sys.executable, "-m", "specplan", "cost", "llama3-70b", "--draft", "llama3.2-1b", "--tp", "4", cwd=away, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "0.017780" in done.stdout


BLOCKED = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))  # None there: not installed, to an import as to a search
from specplan.cli.app import main
main({argv!r})
"""


def without(blocked: set[str], *argv: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", BLOCKED.format(blocked=blocked, argv=list(argv)))


@pytest.mark.parametrize(
    "argv", [("cost", "llama3-8b"), ("models",), ("hardware",), ("check-chapter",), ("explain", "c")]
)
def test_the_calculator_needs_neither_torch_nor_numba(argv: tuple[str, ...]) -> None:
    done = without({"torch", "numba", "transformers", "scipy", "matplotlib"}, *argv)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "missing", "extra"),
    [
        (("measure", "--demo"), "torch", "harness"),
        (("bench", "llama3.2-1b"), "torch", "harness"),
        (("calibrate", "-o", "mine.yaml"), "torch", "harness"),
        (("replay", "smollm2", "-s", "suffix"), "numba", "replay"),
        (("ingest", "tests/data/vllm_cpu_server/metrics.txt"), "prometheus_client", "ingest"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_without_an_extra_the_error_names_the_install_line(argv: tuple[str, ...], missing: str, extra: str) -> None:
    done = without({missing}, *argv)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"specplan: this needs {missing}, which is not installed; run: pip install 'specplan[{extra}]'"
    )


EXTRAS = {
    "torch", "transformers", "accelerate", "gguf", "safetensors", "numba", "orjson", "zstandard", "pyarrow",
    "tokenizers", "prometheus_client", "jinja2", "ray", "scipy", "matplotlib",
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "cost llama3-70b --draft llama3.2-1b --tp 4 -a .7",
        "blocks llama3-8b",
        "compare llama3-8b -s ngram:alpha=.6",
        "schedule llama3-8b --draft llama3.2-1b --alpha .7",
        "tune llama3-8b --draft llama3.2-1b --alpha .7",
        "tie llama3.2-1b ngram --target llama3-8b --alpha 0.7",
        "simulate llama3-8b --rate 4 --input 500 --output 20 -n 30",
        "capacity llama3-8b --rate 20 --input 500 --output 20 --ttft p95=100ms -n 100",
    ],
    ids=lambda line: line.partition(" ")[0],
)
def test_the_core_needs_no_extra(line: str) -> None:
    done = without(EXTRAS, *line.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "missing", "extra"),
    [
        ("plane llama3-8b --draft llama3.2-1b -o plane.svg", "matplotlib", "plot"),
        ("simulate llama3-8b --rate 4 --input 500 --output 20 -n 30 -o queue.svg", "matplotlib", "plot"),
        ("compare llama3-8b -s llama3.2-1b:alpha=.7,adaptive=.5", "scipy", "adaptive"),
    ],
)
def test_what_the_core_lacks_is_named(line: str, missing: str, extra: str) -> None:
    done = without({missing}, *line.split())
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"pip install 'specplan[{extra}]'"), done.stderr
    assert missing in done.stderr


def test_help_imports_no_numerics() -> None:
    done = without({"numpy", "scipy", "matplotlib", "torch", "pydantic_settings", "numba"}, "--help")
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
