"""What is known of which engine version, and since when, as tables and as one document."""

from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.memory.pool import BLOCK_RULES
from specplan.report.grid import grid
from specplan.timing.timed_engine import ENGINES
from specplan.values.vllm_versions import CHANGES, DEFAULT_VERSION, EVIDENCE, NEWEST, OLDEST

_WORDS: Final = {
    "blocks": "pool by its own rules",
    "simulated": "scheduler simulated",
}


def engines_document() -> dict[str, Any]:
    """The document that ``specplan engines --json`` prints."""
    return {
        "command": "engines",
        "inputs": {},
        "engines": [
            {
                "name": e.name,
                "version": e.version,
                "blocks": e.name in BLOCK_RULES,
                "simulated": e.name.startswith("vllm"),
                "times": e.source,
            }
            for e in ENGINES.values()
        ],
        "vllm": {
            "oldest": _text(OLDEST),
            "newest": _text(NEWEST),
            "default": DEFAULT_VERSION,
            "changes": [
                {"since": _text(since), "change": {k: _plain(v) for k, v in change.items()}, "seen": seen}
                for since, change, seen in CHANGES
            ],
            "evidence": [{"version": v, "what": what, "how": how} for v, what, how in EVIDENCE],
        },
    }


def _text(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value


def print_engines(console: Console) -> None:
    """Print the tables."""
    found = engines_document()
    table = grid("engine", "version", *_WORDS.values(), "times rest on", left=("engine", "version", "times rest on"),
                 wrap=("times rest on",))  # fmt: skip
    for e in found["engines"]:
        known = ("yes" if e[name] else "no" for name in _WORDS)
        table.add_row(escape(e["name"]), escape(e["version"]), *known, escape(e["times"]))
    console.print(table)
    vllm = found["vllm"]
    console.print(f"\nvLLM {vllm['oldest']} to {vllm['newest']}, {vllm['default']} by default", highlight=False)
    table = grid("since", "what changed", "seen in", left=("since", "what changed", "seen in"),
                 wrap=("what changed", "seen in"))  # fmt: skip
    for row in vllm["changes"]:
        said = "; ".join(f"{k} {', '.join(v) if isinstance(v, list | tuple) else v}" for k, v in row["change"].items())
        table.add_row(row["since"], escape(said), escape(row["seen"]))
    console.print(table)
    console.print()
    table = grid("version", "what", "how it is known", left=("version", "what", "how it is known"))
    for row in vllm["evidence"]:
        table.add_row(row["version"], row["what"], escape(row["how"]))
    console.print(table)
