"""Lists and cards of shipped models and accelerators."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specplan.formulas import kv_cache, parameters
from specplan.report.json_document import whole
from specplan.units import format_bytes, format_count, format_gib, format_seconds
from specplan.values.hardware import Accelerator, Calibration
from specplan.values.model import Model


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(
            name, justify="right" if justify == "right" else "left", no_wrap=name != "aliases", overflow="fold"
        )
    return table


def model_summary(model: Model, aliases: Sequence[str] = ()) -> dict[str, Any]:
    """What a model's shapes imply: parameters by access and component, bytes, cache per token. All exact counts."""
    return {
        "name": model.name,
        "aliases": list(aliases),
        "source": model.source,
        "model_type": model.model_type,
        "layers": len(model.layers),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "max_position": model.max_position,
        "weight_format": model.weight_format.name,
        "quantization": None if model.quantization is None else model.quantization.name,
        "streamed_params": round(parameters.streamed_params(model)),
        "gathered_params": parameters.gathered_params(model),
        "elementwise_params": parameters.elementwise_params(model),
        "resident_params": parameters.resident_params(model),
        "published_params": model.published_params,
        "components": parameters.params_by_component(model),
        "resident_bytes": whole(parameters.resident_bytes(model)),
        "streamed_bytes": whole(parameters.streamed_bytes(model)),
        "kv_bytes_per_token": whole(kv_cache.kv_bytes_per_token(model)),
        "state_bytes_per_sequence": whole(float(kv_cache.kv_bytes_stored(model, 0))),
        "mixture_of_experts": parameters.is_routed(model),
        "assumptions": list(model.assumptions),
        "evidence": evidence(model),
    }


def evidence(model: Model) -> str:
    """What the counts of a model rest on."""
    if model.assumptions:
        return "assumed" + (f", {model.evidence}" if model.evidence else "")
    if "the config is counted" in model.evidence:
        return f"by its config, against {model.evidence}"
    return f"exact against {model.evidence}" if model.evidence else "exact by a config fully understood"


def print_models(models: Sequence[tuple[Model, Sequence[str]]], console: Console) -> None:
    """Print one line per model."""
    table = _table(("name", "left"), ("total", "right"), ("per token", "right"), ("format", "left"),
                   ("KV/token", "right"), ("aliases", "left"))  # fmt: skip
    for model, aliases in models:
        table.add_row(
            model.name,
            format_count(parameters.resident_params(model)),
            format_count(parameters.streamed_params(model)),
            (model.quantization or model.weight_format).name,
            format_bytes(kv_cache.kv_bytes_per_token(model)),
            ", ".join(aliases),
        )
    console.print(table)
    console.print("[dim]total: resident parameters; per token: streamed by one token; all exact counts[/dim]")


def print_model(model: Model, aliases: Sequence[str], console: Console) -> None:
    """Print the card of one model."""
    summary = model_summary(model, aliases)
    table = _table(("", "left"), ("", "right"), ("figure is", "left"))
    exact = "assumed" if model.assumptions else "exact"
    for key in ("streamed_params", "gathered_params", "elementwise_params", "resident_params"):
        table.add_row(key.replace("_", " "), f"{summary[key]:,}", exact)
    if model.published_params is not None:
        agrees = model.published_params == summary["resident_params"]
        table.add_row("published total", f"{model.published_params:,}", "equal" if agrees else "DIFFERS")
    for component, count in summary["components"].items():
        table.add_row(f"  {component}", f"{count:,}", exact)
    table.add_row("weights", format_gib(summary["resident_bytes"]), "derived")
    table.add_row("streamed per token", f"{summary['streamed_bytes'] / 1e9:,.3f} GB", "derived")
    table.add_row("KV per token", format_bytes(summary["kv_bytes_per_token"]), exact)
    if summary["state_bytes_per_sequence"]:
        table.add_row("state per sequence", format_bytes(summary["state_bytes_per_sequence"]), exact)
    layers = f"{summary['layers']} layers, hidden {model.hidden_size:,}, vocabulary {model.vocab_size:,}"
    console.print(
        f"[bold]{escape(model.name)}[/bold] {layers}, {summary['quantization'] or summary['weight_format']}",
        highlight=False,
    )
    console.print(model.source, style="dim", markup=False, highlight=False)
    console.print(table)
    console.print(f"counts: {evidence(model)}", markup=False, highlight=False)


def accelerator_summary(a: Accelerator) -> dict[str, Any]:
    """Everything that a profile says, in base units, with the source of each number."""
    return {
        "name": a.name,
        "aliases": list(a.aliases),
        "vendor": a.vendor,
        "family": a.family,
        "memory_driver_bytes": a.memory_driver_bytes,
        "memory_torch_bytes": a.memory_torch_bytes,
        "bandwidth_bytes_per_s": a.bandwidth,
        "flops_per_s": dict(a.flops),
        "link_bytes_per_s": a.link_bandwidth,
        "pcie_bytes_per_s": a.pcie_bandwidth,
        "tdp_w": a.tdp_w,
        "sources": dict(a.sources),
        "calibration": None if a.calibration is None else _calibration(a),
    }


def _calibration(a: Accelerator) -> dict[str, Any]:
    c = a.calibration
    names = [] if c is None else list(c.__dataclass_fields__)
    return {name: getattr(c, name) for name in names}


def _gib(n_bytes: float | None) -> str:
    return "?" if n_bytes is None else format_gib(n_bytes)


def _rate(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:,.{0 if value >= 10 * unit else 1}f}"


def print_accelerators(cards: Sequence[Accelerator], console: Console) -> None:
    """Print one line per accelerator."""
    table = _table(("name", "left"), ("driver", "right"), ("torch", "right"), ("GB/s", "right"),
                   ("16-bit TFLOP/s", "right"), ("TDP W", "right"), ("aliases", "left"))  # fmt: skip
    for a in cards:
        half = a.flops.get("bfloat16", a.flops.get("float16"))
        table.add_row(
            a.name,
            _gib(a.memory_driver_bytes),
            _gib(a.memory_torch_bytes),
            _rate(a.bandwidth, 1e9),
            _rate(half, 1e12),
            _rate(a.tdp_w, 1),
            ", ".join(a.aliases),
        )
    console.print(table)
    console.print("[dim]memory as the driver and as torch report it; '?': no source found[/dim]")


def print_accelerator(a: Accelerator, console: Console) -> None:
    """Print the card of one accelerator, each number with its source."""
    table = _table(("", "left"), ("", "right"), ("source", "left"))
    table.columns[2].no_wrap = False
    rows: list[tuple[str, str, str]] = [
        ("memory, driver", _gib(a.memory_driver_bytes), "memory.driver"),
        ("memory, torch", _gib(a.memory_torch_bytes), "memory.torch"),
        ("bandwidth", f"{_rate(a.bandwidth, 1e9)} GB/s", "bandwidth"),
        *((f"{name} dense", f"{_rate(rate, 1e12)} TFLOP/s", f"flops.{name}") for name, rate in a.flops.items()),
        ("link, one way", f"{_rate(a.link_bandwidth, 1e9)} GB/s", "link"),
        ("PCIe, one way", f"{_rate(a.pcie_bandwidth, 1e9)} GB/s", "pcie"),
        ("board power", f"{_rate(a.tdp_w, 1)} W", "tdp"),
    ]
    for label, value, key in rows:
        table.add_row(escape(label), value, escape(a.sources.get(key, "")))
    console.print(f"[bold]{escape(a.name)}[/bold] {escape(a.vendor)} {escape(a.family)}", highlight=False)
    console.print(table)
    if a.note:
        console.print(a.note, markup=False, highlight=False)
    if a.calibration is not None:
        _print_calibration(a, a.calibration, console)


def _print_calibration(a: Accelerator, found: Calibration, console: Console) -> None:
    """Print what was measured on the card, or on a card of its family, apart from the datasheet's numbers."""
    borrowed = "" if found.card == a.name else f", borrowed from {found.card} of the family {a.family}"
    table = _table(("measured", "left"), ("", "right"), ("source", "left"))
    table.columns[2].no_wrap = False
    for name, source in found.sources.items():
        value = getattr(found, name)
        if value is not None:
            table.add_row(
                name.removesuffix("_s").replace("_", " "),
                format_seconds(value) if name.endswith("_s") else f"{value:.3f}",
                escape(source),
            )
    console.print(f"\ncalibration of {found.date}{borrowed}", markup=False, highlight=False)
    console.print(table)
