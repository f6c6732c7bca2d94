"""Options that several commands take, declared once: one spelling, one meaning and one default each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

CONTEXT: Final = "2k"
"""Cached tokens per request where none are given; only the chapter's own figures in `cost` count none."""

TARGET: Any = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one.")
SOURCE: Any = typer.Option(
    [],
    "--source",
    "-s",
    help="ngram:coverage=.4,alpha=.8; llama3.2-1b:alpha=.7; eagle:alpha=.8/.7/.6; mine:c=.05,alpha=.6..0.8; "
    "FILE.json[:NAME] of replay, measure, ingest or bench. Repeat for more.",
)
GPU: Any = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name (see `specplan hardware`) or a YAML file.")
TP: Any = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model.")
ENGINE: Any = typer.Option("vllm", "--engine", help="vllm, sglang, or another that `validate` replays.")
ENGINE_VERSION: Any = typer.Option(None, "--engine-version", help="Of the pool, such as 0.19.0; the newest by default.")
LAYER: Any = typer.Option("modelled", "--layer", help="How passes are timed: roofline, modelled or measured.")
MEASURED: Any = typer.Option(
    None, "--measured", help="NAME=FILE: measured step times of the target or of a source, for --layer measured."
)
QUANTIZATION: Any = typer.Option(
    None,
    "--quantization",
    "-q",
    help="Ask for the target in another format: fp8, fp8-block, nvfp4, mxfp4, awq, gptq-int4, q4_k_m, bf16, ...",
)
KV_CACHE_DTYPE: Any = typer.Option("auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ...")
UTILIZATION: Any = typer.Option(
    None,
    "--gpu-memory-utilization",
    "--mem-fraction-static",
    help="The engine's own fraction, else its default.",
)
BATCH: Any = typer.Option(1, "--batch", "-b", help="Requests per step.")
CONTEXT_LEN: Any = typer.Option(CONTEXT, "--context", help="Cached tokens per request (32k works).")
KAPPA: Any = typer.Option(3, "--num-speculative-tokens", "-k", help="Drafted tokens per step.")
MAX_KAPPA: Any = typer.Option(8, "--max-k", help="Longest draft that is tried for the best.")
RIDGE: Any = typer.Option(None, "--ridge", help="Ridge in positions, where no target is named.")
PICTURE: Any = typer.Option(None, "--output", "-o", help="Picture: .svg, .png, .pdf or .pgf.")
TITLE: Any = typer.Option(None, "--title", help="Heading of the picture; '' leaves it out.")
WIDTH: Any = typer.Option(None, "--width", help="Width of the picture in inches, from 3.")
LEGEND: Any = typer.Option("table", "--legend", help="Of the picture: table, inline or none.")
DPI: Any = typer.Option(200, "--dpi", help="Dots per inch of a .png.")
FONT_SIZE: Any = typer.Option(None, "--font-size", help="Points of the picture's text. [default: by width and style]")
STYLE: Any = typer.Option("paper", "--style", help="Of the picture: paper, slide or dark.")
JSON: Any = typer.Option(False, "--json", help="One JSON document and nothing else.")


def counts(text: str) -> list[int]:
    """Comma-separated counts of an option.

    >>> counts("1,2k")
    [1, 2048]
    """
    from specplan import units

    return [units.parse_count(part) for part in text.split(",")]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that was asked for: checked before any work, drawn after it."""

    path: Path
    dpi: int
    look: dict[str, Any]

    def draw(self, plot: Callable[..., Any], name: str) -> None:
        """Draw it by `plot`; `name` is the title that the file carries where the picture has none."""
        from specplan.report.picture import save  # matplotlib is imported only for a picture

        save(plot(**self.look), self.path, self.look["title"] or name, self.dpi)


def picture(output: str | None, *, dpi: int, **look: Any) -> Picture | None:
    """What ``-o`` and the options of its look ask for; None without ``-o``."""
    from specplan.report.drawing import Drawing, checked_dpi
    from specplan.report.output_file import picture_path

    Drawing(**look)
    if output is None:
        return None
    return Picture(picture_path(output), checked_dpi(dpi), look)


def answer(found: Any, *, json: bool, **shown: Any) -> None:
    """Print an answer as its document or as its tables."""
    if json:
        from specplan.report.json_document import text_of

        typer.echo(text_of(found.to_dict()))
        return
    from specplan.report.console import Console

    found.show(Console(), **shown)
