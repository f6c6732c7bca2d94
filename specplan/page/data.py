"""What the page computes from: shapes of shipped models, cards, laws of kernels and engines, as plain JSON values.

The page's own modules hold the formulas again (`laws.js`); every constant of them comes from here, none is written
twice. Infinite limits become null.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from specplan.decide.ranks import require_ranks
from specplan.decide.step_source import SGLANG_NODES, eagle3_head, eagle_head, mtp_head
from specplan.errors import SpecplanError
from specplan.formulas import pass_kernels
from specplan.formulas.kernels import HEAD_UNIT
from specplan.formulas.kv_cache import Span, read_spans, recurrent_state_bytes, stored_spans
from specplan.formulas.parameters import resident_bytes, resident_params, streamed_bytes, streamed_params
from specplan.formulas.pass_kernels import WIDTH_FRACTION, law_key
from specplan.formulas.step import PassShape, pass_shape, without
from specplan.memory.plain import DEFAULT_UTILIZATION, DEFAULT_WORKSPACE
from specplan.specs.catalog import list_models
from specplan.specs.hardware import list_accelerators
from specplan.timing import draft_time
from specplan.timing.roofline import NATIVE
from specplan.timing.step_time import SAME_RATE, link_bandwidth, machine, times_from
from specplan.timing.timed_engine import ENGINES
from specplan.timing.trust import band
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.kernels import KernelLaws
from specplan.values.model import Model

RANKS: Final = (1, 2, 4, 8)
"""Tensor-parallel degrees that the page offers, where a model takes them."""

HEADS: Final = {"eagle": eagle_head, "eagle3": eagle3_head, "mtp": mtp_head}
"""Heads that are made from a target's shape."""

_MATCHERS: Final = (
    "NGRAM_CALL_S", "NGRAM_REQUEST_S", "NGRAM_TOKEN_S", "SUFFIX_REQUEST_S", "TRIE_MATCH_S", "TRIE_INSERT_S",
    "HOST_SYNC_S", "CARD_MATCH_LAUNCH_S", "TOKEN_ID_BYTES",
)  # fmt: skip
_KERNELS: Final = ("ACTIVATION_BYTES", "GLUE_PER_LAYER", "GLUE_SHARE", "LATENT_GLUE", "LOGIT_BYTES")


def page_data() -> dict[str, Any]:
    """Everything that the page's modules read, JSON-ready.

    >>> found = page_data()
    >>> found["models"]["llama3-70b"]["ranks"]["4"]["all_reduces"]
    160
    """
    cards = [card for card in list_accelerators() if _memory(card)]
    laws: list[KernelLaws] = []
    for law in (law for card in cards for law in card.kernels.values()):
        laws += [] if law in laws else [law]
    return {
        "models": {entry.name: _model(entry.model) for entry in list_models()},
        "cards": {card.name: _card(card, laws) for card in cards},
        "laws": values(laws),
        "engines": {name: values(engine) | {"family": engine.family} for name, engine in ENGINES.items()},
        "matchers": {name: getattr(draft_time, name) for name in _MATCHERS},
        "kernels": {name: getattr(pass_kernels, name) for name in _KERNELS} | {"HEAD_UNIT": HEAD_UNIT},
        "native": list(NATIVE),
        "width_fraction": values(WIDTH_FRACTION),
        "sglang_nodes": SGLANG_NODES,
        "utilization": DEFAULT_UTILIZATION,
        "workspace": DEFAULT_WORKSPACE,
    }


def values(thing: Any) -> Any:
    """A frozen value as JSON: its class as ``kind``, fields by name; a number format as [law, payload bits, bytes].

    >>> values((1.0, float("inf")))
    [1.0, None]
    """
    if isinstance(thing, NumberFormat):
        return [law_key(thing), thing.payload_bits, thing.bytes]
    if is_dataclass(thing) and not isinstance(thing, type):
        named = {f.name: values(getattr(thing, f.name)) for f in fields(thing) if f.name != "fit"}
        return {"kind": type(thing).__name__, **({"mixer": named.pop("kind")} if "kind" in named else {}), **named}
    if isinstance(thing, Mapping):
        return {str(key): values(value) for key, value in thing.items()}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return [values(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing


def _model(model: Model) -> dict[str, Any]:
    ranks = {str(tp): shape_values(pass_shape(model, tp)) for tp in RANKS if _takes(model, tp)}
    return {
        "source": model.source,
        "vocabulary": model.vocab_size,
        "max_position": model.max_position,
        "streamed_bytes": streamed_bytes(model),
        "parameters": resident_params(model),
        "format": (model.quantization or model.weight_format).name,
        "ranks": ranks,
        "heads": dict(_heads(model)),
    }


def _heads(target: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, make in HEADS.items():
        try:
            head = make(target)
        except SpecplanError:  # a target without the layers that such a head is made from
            continue
        shapes = {tp: pass_shape(head, tp, head_of=target) for tp in RANKS if _takes(target, tp) and _takes(head, tp)}
        yield (
            kind,
            {
                str(tp): shape_values(shape)
                | ({"later": shape_values(without(shape, "fc"))} if kind == "eagle3" else {})
                for tp, shape in shapes.items()
            },
        )


def shape_values(shape: PassShape) -> dict[str, Any]:
    """The coefficients of a pass on one rank, with what its model stores and reads of the cache."""
    model, tp, kv = shape.model, shape.tp, shape.kv_format
    mixers = Counter(layer.mixer for layer in model.layers).items()
    found: dict[str, Any] = {
        f.name: values(getattr(shape, f.name)) for f in fields(shape) if f.name not in ("model", "kv_format")
    }
    return found | {
        "hidden": model.hidden_size,
        "read": _spans((span, n) for mixer, n in mixers for span in read_spans(mixer, kv, tp)),
        "stored": _spans((span, n) for mixer, n in mixers for span in stored_spans(mixer, kv, tp)),
        "recurrent_bytes": sum(n * recurrent_state_bytes(mixer, model, tp) for mixer, n in mixers),
        "resident_bytes": resident_bytes(model, tp),
        "bytes_per_parameter": streamed_bytes(model) / streamed_params(model),
        "stored_as": (model.quantization or model.weight_format).name,
        "weight_format": model.weight_format.name,
        "maps_vocabulary": model.head_vocab_size is not None,
    }


def _spans(found: Iterable[tuple[Span, int]]) -> list[Any]:
    """[bytes per entry of all layers, limit, rate] of equal spans."""
    added: Counter[tuple[float, int]] = Counter()
    for span, n in found:
        added[span.limit, span.rate] += n * span.entry_bytes  # type: ignore[assignment]
    return [[entry_bytes, *values(at)] for at, entry_bytes in added.items()]


def _takes(model: Model, tp: int) -> bool:
    try:
        require_ranks(model, tp)
    except SpecplanError:
        return False
    return True


def _memory(card: Accelerator) -> float | None:
    return card.memory_torch_bytes or card.memory_driver_bytes


def _card(card: Accelerator, laws: list[KernelLaws]) -> dict[str, Any]:
    rates = {key: next((card.flops[f] for f in (key, *same) if f in card.flops), None) for key, same in _RATES.items()}
    on = machine(card)
    return {
        "family": card.family,
        "vendor": card.vendor,
        "memory": _memory(card),
        "memory_seen_by": "torch" if card.memory_torch_bytes else "driver",
        "bandwidth": card.bandwidth,
        "flops": dict(card.flops),
        "rates": {key: rate for key, rate in rates.items() if rate is not None},
        "link_bandwidth": link_bandwidth(card),
        "has_links": card.link_bandwidth is not None,
        "calibration": values(on.calibration) | {"sources": None},
        "laws": {engine: laws.index(law) for engine, law in card.kernels.items()},
        "engines": {name: _on(card, name) for name in ENGINES},
    }


_RATES: Final = {key: SAME_RATE.get(key, ()) for key in ("bfloat16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int4")}


def _on(card: Accelerator, engine: str) -> dict[str, Any]:
    """What the card's modelled times rest on under an engine, and how far they may be off."""
    one, many = machine(card, engine), machine(card, engine, 2)
    found = band(one)
    return {
        "band": [found.low, found.high, found.basis],
        "times_from": times_from(one),
        "notes": list(one.notes),
        "notes_of_ranks": [note for note in many.notes if note not in one.notes],
    }
