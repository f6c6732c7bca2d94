"""Help of one command: options in panels, names in full at any width, examples below."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer
import typer.core

PAGE: Final = 58
"""Lines of a first page; rarer panels of a longer help are listed by name only."""
_NAMES: Final = 34

PANELS: Final[dict[str, frozenset[str]]] = {
    "model": frozenset(
        [
            "--draft",
            "--source",
            "--points",
            "--target",
            "--alpha",
            "--cost",
            "--c",
            "--dtype",
            "--quantization",
            "--num-speculative-tokens",
            "--kappa-max",
            "--max",
            "--max-k",
            "--compare",
            "--grid",
            "--runner",
            "--rule",
            "--temperature",
            "--layers",
            "--assume",
            "--name",
            "--draft-tensor-parallel-size",
            "--target-path",
            "--draft-path",
            "--model",
        ]
    ),
    "card": frozenset(
        [
            "--gpu",
            "--gpu-memory",
            "--tensor-parallel-size",
            "--pipeline-parallel-size",
            "--data-parallel-size",
            "--device",
            "--threads",
            "--decode-context-parallel-size",
            "--prefill-context-parallel-size",
            "--enable-expert-parallel",
            "--price",
        ]
    ),
    "load": frozenset(
        [
            "--batch",
            "--context",
            "--max-batch",
            "--rate",
            "--burstiness",
            "--concurrency",
            "--turnaround",
            "--trace",
            "--trace-rate",
            "--input",
            "--requests",
            "--seeds",
            "--seed",
            "--warmup",
            "--ttft",
            "--tpot",
            "--e2e",
            "--prompts",
            "--server",
            "--from-server",
            "--server-plain",
            "--plain-body",
            "--max-tokens",
            "--limit",
            "--order",
            "--replicas",
            "--leave-out-refused",
            "--width",
            "--max-model-len",
            "--prompt-field",
            "--response-field",
            "--tag-field",
            "--id-field",
            "--turns",
            "--tokenizer",
            "--chat-template",
            "--strict",
            "--before",
            "--interval",
            "--timeout",
            "--from-log",
        ]
    ),
    "overrides": frozenset(
        [
            "--weights",
            "--activation-peak",
            "--non-torch",
            "--cuda-graphs",
            "--free-before-load",
            "--extra-weights",
            "--workspace",
            "--memory",
            "--multimodal-tokens",
            "--multimodal-values",
            "--num-gpu-blocks-override",
            "--kv-cache-memory-bytes",
            "--ridge",
            "--measured",
            "--layer",
            "--margin",
            "--steps",
            "--buffer",
            "--inner",
            "--repeats",
            "--mamba-ssm-cache-dtype",
            "--mamba-cache-mode",
        ]
    ),
    "output": frozenset(
        [
            "--json",
            "--format",
            "--quiet",
            "--output",
            "--data",
            "--picture",
            "--kind",
            "--log-c",
            "--levels",
            "--cells",
            "--c-max",
            "--verdict",
            "--check",
            "--figures",
            "--rows",
            "--records",
            "--per-request",
            "--checkpoint",
            "--chrome-trace",
            "--picture",
            "--window",
            "--alert",
            "--rules",
            "--words",
            "--timing",
            "--demo",
            "--tiny",
            "--jobs",
            "--on",
            "--help",
        ]
    ),
}
"""Options by what they speak of; the others are the engine's own."""
_ORDER: Final = ("model", "card", "load", "engine", "overrides", "picture", "output")
_FOLDED: Final = ("overrides", "picture", "engine", "load", "card", "output")

EVERYWHERE: Final = (
    ("--format table|csv|md|json", "Form of the tables; json is --json."),
    ("--quiet", "Leave out what is assumed and not modelled."),
)
"""Options that every command with a table takes (see `specplan.cli.app`)."""

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "cost": (
        "specplan cost llama3-70b --draft llama3.2-1b --gpu h100-sxm --tp 4 --alpha 0.7",
        "specplan cost qwen3-8b --source ngram:alpha=.7,k=5 --gpu l40s --json",
    ),
    "blocks": (
        "specplan blocks llama3-70b --draft llama3.2-1b --gpu h100-sxm --tp 4 -k 5",
        "specplan blocks qwen3-8b --gpu l40s --kv-cache-dtype fp8 --max-model-len 32k --quiet",
    ),
    "plane": (
        "specplan plane llama3-8b llama3-70b --draft llama3.2-1b --alpha .7 -o plane.svg",
        "specplan plane --source mine:c=.05,alpha=.6..0.8 --kind kappa",
    ),
    "tune": (
        "specplan tune llama3-8b --draft llama3.2-1b --alpha .7",
        "specplan tune --alpha .5,.7 --c .02,.1 --format md",
    ),
    "tie": (
        "specplan tie llama3.2-1b ngram --target llama3-8b --alpha 0.7",
        "specplan tie mine:c=.165,alpha=.7 suffix --format json",
    ),
    "compare": (
        "specplan compare llama3-70b --tp 4 --batch 1,64 -s ngram:coverage=.4,alpha=.8 -s llama3.2-1b:alpha=.7",
        "specplan compare llama3-8b -s ngram:alpha=.6 --format csv",
    ),
    "schedule": (
        "specplan schedule llama3-8b --draft llama3.2-1b --alpha .7 --engine vllm",
        "specplan schedule llama3-8b --source ngram:alpha=.7 --context 2k,8k --json",
    ),
    "validate": ("specplan validate", "specplan validate startup --quiet"),
    "measure": (
        "specplan measure --demo --tiny",
        "specplan measure --source suffix --prompts copy --limit 1 --max-tokens 8 -o runs/suffix",
        "specplan measure --server http://127.0.0.1:8000 --server-plain http://127.0.0.1:8001 --concurrency 1,8",
    ),
    "bench": (
        "specplan bench smollm2-135m --layers 1 --batch 1 --width 1,4 --context 64 --repeats 2 --gpu h100-sxm",
        "specplan bench smollm2-135m --layers 1 --batch 1 --width 1 --context 64 --gpu h100-sxm -o times.json",
    ),
    "calibrate": (
        "specplan calibrate -o mine.yaml --buffer '64 MiB' --repeats 2",
        "specplan calibrate -o mine.yaml --buffer '64 MiB' --repeats 2 --json",
    ),
    "simulate": (
        "specplan simulate llama3-8b --rate 4 --input 500 --output 100 -n 100",
        "specplan simulate llama3-8b -s ngram:alpha=.6,coverage=.4,k=3 --concurrency 8 --input 500 --output 100 -n 100",
    ),
    "capacity": (
        "specplan capacity llama3-8b --rate 20 --input 500 --output 50 --ttft p95=100ms -n 100",
        "specplan capacity llama3-8b --rate 20 --input 500 --output 50 --ttft p95=100ms -n 100 --json",
    ),
    "replay": (
        "specplan replay smollm2 --source ngram:min=2,max=5,k=3 --source suffix",
        "specplan replay smollm2 --grid ngram:min=2,max=5,k=3|5 --target llama3-8b --format csv",
    ),
    "ingest": ("specplan ingest --words", "specplan ingest metrics.txt --target llama3-8b"),
    "import": ("specplan import config.json -o spec.yaml", "specplan import config.json --name mine --json"),
    "architectures": ("specplan architectures", "specplan architectures --format csv"),
    "models": ("specplan models", "specplan models llama3-8b"),
    "hardware": ("specplan hardware --format md", "specplan hardware h100"),
    "engines": ("specplan engines", "specplan engines --json"),
    "explain": ("specplan explain alpha-dagger", "specplan explain κ"),
    "schema": ("specplan schema", "specplan schema compare"),
    "check-chapter": ("specplan check-chapter", "specplan check-chapter --format csv"),
    "page": (
        "specplan page -o page.html",
        "specplan page --output speculation.html",
    ),
}
"""Two lines per command that run as they stand (`metrics.txt` and `config.json` are the reader's own)."""


class HelpedCommand(typer.core.TyperCommand):
    """A command whose help is `page`; ``--help-all`` folds nothing."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        columns = min(shutil.get_terminal_size().columns, 120)
        formatter.write(page(self, ctx, max(columns, 40), whole="--help-all" in ctx.help_option_names and _is_whole()))


def _is_whole() -> bool:
    import sys

    return "--help-all" in sys.argv


PICTURE: Final = frozenset(["--title", "--width", "--legend", "--dpi", "--font-size", "--style"])
"""The look of a picture, in the commands that draw (elsewhere --width is another thing)."""


def panel_of(names: Iterable[str], *, draws: bool = False) -> str:
    """The panel of an option, by its names.

    >>> panel_of(["--gpu"]), panel_of(["--enforce-eager"])
    ('card', 'engine')
    """
    if draws and PICTURE & set(names):
        return "picture"
    found = [panel for panel, members in PANELS.items() if members & set(names)]
    return found[0] if found else "engine"


_METAVARS: Final = {"int": " INT", "integer": " INT", "float": " NUM"}


def _kind(param: Any) -> str:
    """Name of an option's type, as the installed typer keeps it."""
    described = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    return described.__name__ if isinstance(described, type) else str(getattr(getattr(param, "type", None), "name", ""))


def _long(param: Any) -> list[str]:
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]


def _entry(param: Any) -> tuple[str, str]:
    """Names with their metavar, and help with the default."""
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        names += "/" + ", ".join(param.secondary_opts)
    kind = _kind(param)
    flag = getattr(param, "is_flag", False) or kind == "bool"
    default = param.default
    shown = not flag and not callable(default) and default not in (None, "", [], (), False)
    value = ",".join(map(str, default)) if isinstance(default, list | tuple) else default
    stated = f" [default: {value}]" if shown and "[default:" not in (param.help or "") else ""
    return f"{names}{'' if flag else _METAVARS.get(kind, ' TEXT')}", f"{param.help or ''}{stated}".strip()


def _lines(entries: Sequence[tuple[str, str]], columns: int) -> list[str]:
    """Names and texts in two columns; a name that is too long has its line."""
    room = min(max((len(name) for name, _ in entries), default=0), _NAMES)
    out = []
    for name, text in entries:
        words = textwrap.wrap(text, columns - room - 4, break_on_hyphens=False) or [""]
        if len(name) > room and len(name) + len(text) + 4 <= columns:
            out.append(f"  {name}  {text}".rstrip())
        elif len(name) > room:
            out.append(f"  {name}")
            out += [f"{'':{room + 4}}{w}" for w in words if w]
        else:
            out.append(f"  {name:<{room}}  {words[0]}".rstrip())
            out += [f"{'':{room + 4}}{w}" for w in words[1:]]
    return out


def page(command: Any, ctx: Any, columns: int, *, whole: bool = False) -> str:
    """The help of a command as text."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([ctx.command_path, *(f"[{p.name}]" if not p.required else p.name
                                          for p in arguments), "[options]"])  # fmt: skip
    about = [textwrap.fill(" ".join(part.split()), columns) for part in (command.help or "").split("\n\n")]
    draws = any("--style" in p.opts for p in options)
    panels: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
    for p in options:
        panels[panel_of(p.opts, draws=draws)].append(_entry(p))
    if any("--json" in p.opts for p in options) and command.name != "calibrate":
        panels["output"] += EVERYWHERE
    panels["output"].append(("-h, --help, --help-all", "This page; all of it."))
    rows = {name: _lines(entries, columns) for name, entries in panels.items() if entries}
    head = [f"usage: {usage}", "", *"\n\n".join(about).split("\n")]
    told = [(p.name, " ".join((getattr(p, "help", None) or "").split())) for p in arguments]
    if told:
        head += ["", _title("arguments"), *_lines(told, columns)]
    tail = []
    if command.name in EXAMPLES:
        tail = ["", _title("examples"), *(f"  {line}" for line in EXAMPLES[command.name])]
    for name in _FOLDED:
        if whole or len(head) + len(tail) + sum(len(r) + 2 for r in rows.values()) <= PAGE:
            break
        if name in rows:
            short = ", ".join("/".join(_long(p)) for p in options if panel_of(p.opts, draws=draws) == name)
            rows[name] = textwrap.wrap(
                f"{short} (--help-all tells them)", columns, initial_indent="  ", subsequent_indent="  ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    body = [line for name in rows for line in ("", _title(name), *rows[name])]
    return "\n".join([*head, *body, *tail]) + "\n"


def _title(text: str) -> str:
    return typer.style(text, bold=True)
