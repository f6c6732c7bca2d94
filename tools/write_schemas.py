"""Write the JSON Schemas of all documents into specplan/data/schemas, read off the documents of example lines.

    python tools/write_schemas.py [COMMAND ...]

The lines are the examples of the help and those below. What the new schema of a document takes away from the old one
is a change to announce in CHANGELOG.md. `measure` needs SmolLM2-135M.
"""

import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from specplan.cli.app import COMMANDS, main
from specplan.cli.help import EXAMPLES
from specplan.report.schema import document_schema

ROOT = Path(__file__).parents[1]
MORE = {
    "cost": [
        "cost llama3-8b",
        "cost deepseek-v3 --gpu h200 --tp 8 --alpha .6 --draft mtp",
        "cost llama3-70b --gpu l40s",
    ],
    "blocks": [
        "blocks llama3-8b --gpu l40s",
        "blocks llama3-8b --engine sglang --draft llama3.2-1b -k 3",
        f"blocks --from-log {ROOT / 'tests/data/vllm_cpu_startup.log'}",
    ],
    "compare": [
        "compare llama3-8b -s ngram -s suffix:alpha=.5 --price 2",
        "compare llama3-8b -s ngram:alpha=.6 --detail",
    ],
    "schedule": ["schedule llama3-8b --source ngram:alpha=.1", "schedule llama3-8b --engine sglang -s eagle:alpha=.7"],
    "plane": ["plane llama3-8b -s ngram:alpha=.6", "plane -s mine:c=.05,alpha=.6 --kind batch --ridge 295"],
    "tune": ["tune llama3-8b -s ngram", "tune"],
    "explain": ["explain", "explain num_accepted_tokens"],
    "hardware": ["hardware"],
    "engines": ["engines"],
    "ingest": ["ingest --rules vllm"],
    "validate": ["validate adaptive", "validate serving"],
    "simulate": ["simulate llama3-8b --engine sglang --concurrency 4 --input 100 --output 20 -n 50"],
}


def document(line: str) -> dict[str, object] | None:
    """The document of a line; None where it prints none."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*shlex.split(line), "--json"])
    try:
        found = json.loads(out.getvalue())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def examples(command: str) -> list[str]:
    """Lines of a command, without their form."""
    lines = [line.removeprefix("specplan ") for line in EXAMPLES.get(command, ())]
    return [line.partition(" --format")[0].replace(" --json", "") for line in lines] + MORE.get(command, [])


def run() -> None:
    """Write the schemas."""
    chosen = sys.argv[1:] or [name for name in COMMANDS if name not in ("schema", "measure")]
    folder = ROOT / "specplan" / "data" / "schemas"
    folder.mkdir(exist_ok=True)
    config = json.loads((ROOT / "tests/data/model_configs.json").read_text())
    with tempfile.TemporaryDirectory() as away:
        os.chdir(away)
        Path("config.json").write_text(json.dumps(next(iter(config.values()))))
        Path("metrics.txt").write_text(
            "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_draft_tokens_total 300\n"
            "vllm:spec_decode_num_accepted_tokens_total 150\nvllm:generation_tokens_total 400\n"
        )
        for command in chosen:
            found = [d for line in examples(command) if (d := document(line)) is not None]
            if not found:
                print(f"{command}: no document")
                continue
            text = json.dumps(document_schema(command, found), indent=1) + "\n"
            (folder / f"{command}.json").write_text(text)
            print(f"{command}: {len(found)} documents, {len(text):,} bytes")


if __name__ == "__main__":
    run()
