"""Hooks of `mkdocs build`: pages that the package writes about itself, formulas without scripts, pictures from commands.

``<!-- run: specplan ... -->`` in a page is replaced by what the command prints; ``<!-- symbols -->`` and ``<!-- page -->``
by the table of symbols and the interactive page; each ``specplan ... -o NAME.svg`` of the gallery is run and its picture
shown below it. Nothing is fetched.
"""

import contextlib
import re
import sys
import tempfile
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from transcripts import printed  # noqa: E402

from specplan.cli.app import COMMANDS, load  # noqa: E402
from specplan.cli.help import page  # noqa: E402


def as_markdown(line: str) -> str:
    """What a command prints as Markdown, each table with the empty line before it that a table needs."""
    return re.sub(r"^([^|\n].*)\n(?=\|)", r"\1\n\n", printed(line), flags=re.MULTILINE)


def command_page(name: str) -> str:
    """A command's page: its whole help, as ``specplan NAME --help-all`` prints it."""
    command = load(name)
    with command.make_context(name, [], resilient_parsing=True) as context:
        context.info_name = f"specplan {name}"
        text = re.sub("\x1b\\[[0-9;]*m", "", page(command, context, 100, whole=True))
    said, _, examples = text.partition("\nexamples\n")
    lines = "\n".join(line.strip() for line in examples.strip().splitlines())
    return f"# {name}\n\n{COMMANDS[name][1]}\n\n```bash\n{lines}\n```\n\n```text\n{said.strip()}\n```\n"


def commands_index() -> str:
    """A table of all commands."""
    rows = [f"| [{name}]({name}.md) | {line} |" for name, (_, line) in COMMANDS.items()]
    return "\n".join(["# Commands", "", "| command | answers |", "|---|---|", *rows, ""]) + (
        "\n`--json` prints one document and nothing else, `--format csv|md` writes tables to paste, `--quiet` leaves out what is "
        "assumed. Exit codes: 0 done; 1 the answer is no, where a verdict was asked for; 2 could not run.\n"
    )


def symbols() -> str:
    """Each symbol with its formula, source, function and worked example."""
    import inspect

    from specplan.report.explain import SYMBOLS, explain_symbol

    parts = []
    for name in SYMBOLS:
        found = explain_symbol(name)
        module, _, function = found.function.rpartition(".")
        doc = inspect.getdoc(getattr(sys.modules[module], function)) or ""
        formulas = re.findall(r"^\.\. math:: (.+(?:\n[ \t]+.+)*)", doc, re.MULTILINE)
        maths = "\n\n".join(f"$$ {' '.join(f.split())} $$" for f in formulas)
        example = "\n".join(f">>> {statement}\n{answer}" for statement, answer in found.example)
        parts.append(f"## {name}\n\n{escape(found.summary)}\n\n{maths}\n\n")
        parts.append(f"Source: {escape(found.source)} Function: `{found.function}`.\n\n```pycon\n{example}\n```\n\n")
    return "".join(parts)


def on_config(config: Any) -> Any:
    """Name the command pages in the navigation."""
    for entry in config.nav:
        if isinstance(entry, dict) and "Commands" in entry:
            entry["Commands"] = ["commands/index.md", *({name: f"commands/{name}.md"} for name in COMMANDS)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that the package writes, the pictures of the gallery, and the page to play with."""

    def add(uri: str, content: str | bytes) -> None:
        files.append(File.generated(config, uri, content=content))

    add("commands/index.md", commands_index())
    for name in COMMANDS:
        add(f"commands/{name}.md", command_page(name))
    add("changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for line in re.findall(r"^specplan .+$", (ROOT / "docs/gallery.md").read_text(encoding="utf-8"), re.MULTILINE):
            printed(line, code=0)
        for picture in Path(folder).glob("*.svg"):
            add(f"gallery/{picture.name}", picture.read_bytes())
        if find_spec("plotly") is not None:
            printed("specplan page -o page.html")
            add("playground.html", Path("page.html").read_bytes())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what commands print, and show each picture below the command that draws it."""
    text = re.sub(r"<!-- run: (specplan .+?) -->", lambda m: as_markdown(m[1]), markdown)
    text = text.replace("<!-- symbols -->", symbols() if "<!-- symbols -->" in text else "")
    if page.file.src_uri == "gallery.md":
        text = re.sub(r"```bash\n(specplan .+ -o (\S+\.svg).*)\n```", r"```bash\n\1\n```\n\n![\2](gallery/\2)", text)
    shown = '<iframe class="page" title="The calculator as a page" src="../playground.html"></iframe>'
    return text.replace("<!-- page -->", shown if find_spec("plotly") is not None else "")


def on_page_content(html: str, **_: Any) -> str:
    r"""Formulas as MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        tex = found[2].strip().removeprefix(r"\(").removesuffix(r"\)").removeprefix(r"\[").removesuffix(r"\]")
        tex = tex.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
        return latex2mathml.converter.convert(tex, display="block" if found[1] == "div" else "inline")

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', drawn, html, flags=re.DOTALL)
