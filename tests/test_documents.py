"""README and docs: transcripts are what commands print, every shell and Python block runs, and the site builds."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = loaded("transcripts")


def blocks(pattern: re.Pattern[str]) -> list[tuple[Path, tuple[str, ...]]]:
    return [(page, m.groups()) for page in tool.PAGES for m in pattern.finditer(page.read_text(encoding="utf-8"))]


def named(found: list[tuple[Path, tuple[str, ...]]]) -> list[object]:
    return [pytest.param(page, *groups, id=f"{page.stem}: {groups[0].strip()[:60]}") for page, groups in found]


SHELL = re.compile(r"^```(?:bash|sh|shell)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINES = [
    (page, (line,)) for page, (block,) in blocks(SHELL) for line in block.splitlines() if line.startswith("specplan ")
]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "command", "shown"), named(blocks(tool.CONSOLE)))
def test_transcripts_are_what_the_commands_print(page: Path, command: str, shown: str) -> None:
    with tool.folder_of(page):
        assert tool.shortened(tool.printed(command, code=0), shown) == shown.rstrip("\n")


WITH_SHELL = sorted({page for page, _ in LINES if page.stem != "gallery"})  # the site's build runs the gallery's


@pytest.mark.parametrize("page", WITH_SHELL, ids=lambda p: p.stem)
def test_shell_blocks_run(page: Path) -> None:
    with tool.folder_of(page):
        for line in [line for p, (line,) in LINES if p == page]:
            command, _, file = line.partition(" > ")
            printed = tool.printed(command, code=0)
            if file:
                Path(file).write_text(printed, encoding="utf-8")


@pytest.mark.parametrize(("page", "code"), named(blocks(PYTHON)))
def test_python_blocks_run(page: Path, code: str) -> None:
    with tool.folder_of(page):
        exec(compile(code, str(page), "exec"), {})  # noqa: S102 - our own pages


def test_no_shell_block_escapes() -> None:
    """What is no `specplan` line is an installation, and those stand in README (which CI runs) or as text."""
    for page, (block,) in blocks(SHELL):
        for line in block.splitlines():
            assert line.startswith("specplan ") or (page.name == "README.md" and ".venv" in line), line
    assert not [
        page for page, (block,) in blocks(re.compile(r"```console\n(.*?)```", re.DOTALL)) if block.count("\n$ ")
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return out


def test_the_site_fetches_nothing_and_its_links_lead_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name in ("playground.html", "404.html"):
            continue
        html = page.read_text(encoding="utf-8")
        html = re.sub(r'<link rel="(?:canonical|prev|next)"[^>]*>', "", html)  # named, not fetched
        for tag, address in re.findall(r"<(script|link|img|iframe|a)\b[^>]*?\b(?:src|href)=\"([^\"]*)\"", html):
            outside = address.startswith(("http:", "https:", "//"))
            assert not outside or tag == "a", f"{page}: {address}"
            path = address.partition("#")[0]
            if path and not outside and not path.startswith(("data:", "mailto:")):
                there = page.parent / path
                assert there.exists() or (there / "index.html").exists(), f"{page}: {address} leads nowhere"


def test_every_picture_of_the_gallery_is_drawn(site: Path) -> None:
    asked = re.findall(r" -o (\S+\.svg)", (ROOT / "docs/gallery.md").read_text(encoding="utf-8"))
    assert len(asked) >= 9
    shown = (site / "gallery/index.html").read_text(encoding="utf-8")
    for name in asked:
        assert (site / "gallery" / name).read_text(encoding="utf-8").startswith("<?xml")
        assert f'src="{name}"' in shown


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    for name in ("formulas", "symbols", "queue", "api"):
        html = (site / name / "index.html").read_text(encoding="utf-8")
        assert "<math" in html, name
        assert "arithmatex" not in html, name


def test_whether_a_70b_and_a_1b_draft_fit_is_answered_two_clicks_from_the_front(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    link = re.search(r'<a href="([^"]+)"[^>]*>[^<]*70B and a 1B draft fit on 4 H100', front)
    assert link is not None
    answer = (site / link[1] / "index.html").read_text(encoding="utf-8")
    for said in ("52 are", "the draft costs 3,150 blocks = 50,400 tokens (10.5%)", "pays"):
        assert said in re.sub(r"<[^>]+>", "", answer)
