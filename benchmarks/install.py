"""What a core install weighs and takes: the wheel, built and installed into a fresh environment, and its commands run.

    python benchmarks/install.py [--tools]

Sizes are what `du` says (whole disk blocks), bytecode included, without pip and setuptools, which the environment
brings. Limits: the core within 120 MB; every core command runs; a picture names the extra. ``--tools`` also runs the
wheel through ``uvx`` and ``pipx``, where they are installed. The last line is JSON.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_MB = 120
COMMANDS = (
    "cost llama3-70b --draft llama3.2-1b --gpu h100-sxm --tp 4 --alpha 0.7",
    "blocks llama3-8b --draft llama3.2-1b",
    "compare llama3-8b --source ngram:alpha=.6",
    "schedule llama3-8b --draft llama3.2-1b --alpha .7",
    "tune llama3-8b --draft llama3.2-1b --alpha .7",
    "tie llama3.2-1b ngram --target llama3-8b --alpha 0.7",
    "simulate llama3-8b --rate 4 --input 500 --output 100 -n 100",
    "capacity llama3-8b --rate 20 --input 500 --output 50 --ttft p95=100ms -n 100",
)
PICTURE = "plane llama3-8b --draft llama3.2-1b -o plane.svg"
ROOT = Path(__file__).parents[1]


def _run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, env=_clean())


def _clean() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


def weight(folder: Path) -> int:
    """Bytes on disk of the files below a folder, in whole blocks."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure(work: Path, *, tools: bool) -> tuple[dict[str, object], bool]:
    """Sizes, seconds and exit codes; whether all hold."""
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), cwd=ROOT)
    if built.returncode:
        sys.exit(built.stderr or built.stdout)
    wheel = next(work.glob("*.whl"))
    _run(sys.executable, "-m", "venv", str(work / "core"), cwd=work)
    bin_, start = work / "core/bin", time.perf_counter()
    installed = _run(str(bin_ / "python"), "-m", "pip", "install", "-q", str(wheel), cwd=work)
    took = time.perf_counter() - start
    if installed.returncode:
        sys.exit(installed.stderr)
    _run(str(bin_ / "python"), "-m", "pip", "uninstall", "-q", "-y", "setuptools", "pip", cwd=work)
    site = next((work / "core").glob("lib/python*/site-packages"))
    each = sorted(((weight(f), f.name) for f in site.iterdir() if f.is_dir()), reverse=True)
    for size, name in each[:8]:
        print(f"{name:<32} {size / 1e6:7.1f} MB")
    mb = weight(site) / 1e6
    print(f"{'core install':<32} {mb:7.1f} MB in {took:.1f} s (limit {LIMIT_MB})")
    codes = {}
    for line in COMMANDS:
        start = time.perf_counter()
        codes[line.partition(" ")[0]] = _run(str(bin_ / "specplan"), *line.split(), cwd=work).returncode
        print(f"specplan {line:<78} exit {codes[line.partition(' ')[0]]}, {time.perf_counter() - start:.2f} s")
    picture = _run(str(bin_ / "specplan"), *PICTURE.split(), cwd=work)
    print(picture.stderr.strip())
    named = picture.returncode == 2 and "specplan[plot]" in picture.stderr
    found: dict[str, object] = {"mb": round(mb, 1), "limit_mb": LIMIT_MB, "seconds": round(took, 1), "codes": codes}
    if tools:
        found["tools"] = {name: _by_tool(name, wheel, work) for name in ("uvx", "pipx")}
    return found, mb <= LIMIT_MB and not any(codes.values()) and named


def _by_tool(name: str, wheel: Path, work: Path) -> int | None:
    if shutil.which(name) is None:
        print(f"{name}: not installed")
        return None
    argv = ["uvx", "--from", str(wheel)] if name == "uvx" else ["pipx", "run", "--spec", str(wheel)]
    done = _run(*argv, "specplan", *COMMANDS[0].split(), cwd=work)
    print(f"{' '.join(argv[:-1])} {wheel.name} specplan ...: exit {done.returncode}")
    return done.returncode


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory() as work:
        found, holds = measure(Path(work), tools="--tools" in sys.argv)
    print(json.dumps(found | {"ok": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
