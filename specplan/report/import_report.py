"""What `specplan import` and `specplan architectures` print."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specplan.report.catalog_table import model_summary, print_model
from specplan.specs.checkpoint import CheckpointSummary
from specplan.specs.huggingface.config import Imported
from specplan.specs.huggingface.status import ArchitectureStatus
from specplan.units import format_gib
from specplan.values.model import Model


def _checkpoint_document(summary: CheckpointSummary) -> dict[str, Any]:
    return {
        "tensors": summary.tensors,
        "total_bytes": summary.total_bytes,
        "bytes_by_dtype": dict(summary.bytes_by_dtype),
        "overhead_bytes": summary.overhead_bytes,
        "decoder_bytes": summary.decoder_bytes,
        "decoder_params": summary.decoder_params,
        "streamed_params": summary.streamed_params,
        "gathered_params": summary.gathered_params,
        "elementwise_params": summary.elementwise_params,
        "mtp_params": summary.mtp_params,
        "outside_params": summary.outside_params,
        "disagreements": list(summary.disagreements),
    }


def import_document(found: Imported, summary: CheckpointSummary | None, inputs: dict[str, Any]) -> dict[str, Any]:
    """The JSON document of an import."""
    model = found.model
    return {
        "command": "import",
        "inputs": inputs,
        "model": model_summary(model)
        | {
            "draft_method": model.draft_method or None,
            "own_head": model.head,
            "own_embedding": model.embedding,
            "mtp_layers": len(model.mtp_layers),
        },
        "wrapper": found.wrapper or None,
        "checkpoint": None if summary is None else _checkpoint_document(summary),
        "assumptions": list(found.assumptions),
        "not_modeled": ["weights of vision and audio towers"] if found.wrapper else [],
    }


def print_import(found: Imported, summary: CheckpointSummary | None, console: Console) -> None:
    """Print the card of an imported model, its checkpoint, and what was assumed."""
    print_model(found.model, (), console)
    for line in (*_notes(found.model), *_wrapper_note(found)):
        console.print(line, highlight=False, markup=False)
    if summary is not None:
        _print_checkpoint(summary, console)
    for assumption in found.assumptions:
        console.print(f"[yellow]assumed[/yellow] {escape(assumption)}", highlight=False)


def _wrapper_note(found: Imported) -> list[str]:
    return [f"text decoder of {found.wrapper}; vision and audio are not counted"] if found.wrapper else []


def _notes(model: Model) -> list[str]:
    notes = []
    if model.draft_method:
        shared = [name for name, own in (("embedding", model.embedding), ("output head", model.head)) if not own]
        shares = f"; {' and '.join(shared)}: the target's" if shared else ""
        cached = sum(layer.mixer is not None for layer in model.layers)
        notes.append(f"{model.draft_method} draft, {cached} KV layer{'s' if cached != 1 else ''}{shares}")
    if model.mtp_layers:
        notes.append(f"carries {len(model.mtp_layers)} multi-token prediction layers (not in the total)")
    return notes


def _print_checkpoint(summary: CheckpointSummary, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("checkpoint headers")
    table.add_column("", justify="right")
    table.add_column("figure is")
    table.add_row("tensors", f"{summary.tensors:,}", "exact")
    table.add_row("stored", format_gib(summary.total_bytes), "exact")
    for dtype, n_bytes in summary.bytes_by_dtype:
        table.add_row(f"  {dtype}", format_gib(n_bytes), "exact")
    table.add_row("scales and zero points", format_gib(summary.overhead_bytes), "exact")
    table.add_row("decoder parameters", f"{summary.decoder_params:,}", "exact")
    for name, count in (("MTP parameters", summary.mtp_params), ("vision and audio", summary.outside_params)):
        if count:
            table.add_row(name, f"{count:,}", "exact")
    console.print(table)
    for line in summary.disagreements:
        console.print(f"[red]disagree[/red] {escape(line)}", highlight=False)
    if not summary.disagreements:
        console.print("[dim]config and headers agree[/dim]")


def architectures_document(statuses: Sequence[ArchitectureStatus], drafts: Sequence[str]) -> dict[str, Any]:
    """The JSON document of the list of architectures."""
    return {
        "command": "architectures",
        "inputs": {},
        "architectures": [{"model_type": s.model_type, "status": s.status, "note": s.note} for s in statuses],
        "draft_methods": list(drafts),
        "counts": dict(Counter(s.status for s in statuses)),
    }


def print_architectures(statuses: Sequence[ArchitectureStatus], drafts: Sequence[str], console: Console) -> None:
    """Print one line per architecture."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("model_type", "status", "note"):
        table.add_column(name, no_wrap=name != "note")
    for status in statuses:
        table.add_row(status.model_type, status.status, status.note)
    console.print(table)
    counts = Counter(s.status for s in statuses)
    console.print(", ".join(f"{n} {status}" for status, n in counts.most_common()), highlight=False)
    console.print(f"drafts: {', '.join(drafts)}", highlight=False)
