"""Transcripts in README.md and docs/: what stands below ``$ specplan ...`` is what the command prints.

    python tools/transcripts.py

writes them anew; tests/test_documents.py compares. A line ``...`` in a transcript leaves out its middle, and as many lines
are kept before and after it.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CONSOLE = re.compile(r"```console\n\$ (specplan [^\n]*)\n(.*?)```", re.DOTALL)
COLUMNS = 132


def printed(line: str, columns: int = COLUMNS, *, code: int | None = None) -> str:
    """What a command prints at a width; SystemExit if it ends with another code than `code`, where one is given."""
    from specplan.cli.app import main

    out, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        with contextlib.redirect_stdout(out):
            main(shlex.split(line)[1:])
    except SystemExit as stop:
        if code is not None and (stop.code or 0) != code:
            raise
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return "\n".join(text.rstrip() for text in out.getvalue().strip("\n").splitlines())


@contextlib.contextmanager
def folder_of(page: Path) -> Iterator[Path]:
    """A folder to run a page's blocks in: a server's page, a config, and the files that the page itself shows."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        shutil.copy(ROOT / "tests/data/vllm_cpu_server/metrics.txt", folder)
        shutil.copy(ROOT / "docs/assets/config.json", folder)
        for title, text in re.findall(
            r'```python title="(\S+)"\n(.*?)```', page.read_text(encoding="utf-8"), re.DOTALL
        ):
            (folder / title).write_text(text, encoding="utf-8")
        sys.path.insert(0, name)
        try:
            yield folder
        finally:
            sys.path.remove(name)


def shortened(text: str, like: str) -> str:
    """`text` without its middle, where `like` leaves it out."""
    lines, shown = text.splitlines(), like.rstrip("\n").splitlines()
    if "..." not in shown:
        return text
    cut = shown.index("...")
    return "\n".join([*lines[:cut], "...", *lines[len(lines) - (len(shown) - cut - 1) :]])


def main() -> None:
    """Write every transcript anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        with folder_of(page):
            fresh = CONSOLE.sub(lambda m: f"```console\n$ {m[1]}\n{shortened(printed(m[1], code=0), m[2])}\n```", text)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
