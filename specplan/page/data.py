"""What the page computes from: shapes of shipped models, laws and peaks of cards, constants of engines, as JSON.

Nothing here is a result: the page's own formulas (``assets/laws.js``) make times, acceptance and memory of these, and a
test in a browser holds them against the Python ones.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from specplan.decide.ranks import require_ranks
from specplan.errors import SpecplanError
from specplan.formulas import parameters
from specplan.formulas.kv_cache import Span, read_spans, recurrent_state_bytes, stored_spans
from specplan.formulas.pass_kernels import (
    AttentionKernel,
    ExpertsKernel,
    Gemm,
    Kernel,
    LatentKernel,
    law_key,
)
from specplan.formulas.step import PassShape, pass_shape
from specplan.memory.plain import DEFAULT_UTILIZATION, DEFAULT_WORKSPACE
from specplan.specs.catalog import list_models
from specplan.specs.hardware import list_accelerators
from specplan.timing.step_time import link_bandwidth, machine
from specplan.timing.timed_engine import ENGINES
from specplan.timing.trust import band
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.kernels import KernelLaws
from specplan.values.model import Model

RANKS: Final = (1, 2, 4, 8)
SERVED: Final = ("vllm", "sglang")
"""Engines that the page offers."""


def page_data() -> dict[str, Any]:
    """Everything that the page needs, as plain values; infinities are null."""
    made = _Maker()
    models = {entry.model.name: found for entry in list_models() if (found := made.model(entry.model)) is not None}
    cards = {card.name: made.card(card) for card in list_accelerators()}
    return {
        "models": models,
        "cards": cards,
        "engines": {name: _engine(name) for name in SERVED},
        "laws": made.laws,
        "formats": made.formats,
        "memory": {"utilization": DEFAULT_UTILIZATION, "workspace": DEFAULT_WORKSPACE},
    }


class _Maker:
    """Collects the laws and formats that models and cards name."""

    def __init__(self) -> None:
        self.laws: dict[str, Any] = {}
        self.formats: dict[str, tuple[str, float, float]] = {}

    def model(self, model: Model) -> dict[str, Any] | None:
        """A model that stands alone, by ranks; None for a head of a target or one that no ranks divide."""
        if model.draft_method:
            return None
        ranks = {}
        for tp in RANKS:
            try:
                require_ranks(model, tp)
                ranks[str(tp)] = self._ranked(model, tp)
            except SpecplanError:
                continue
        streamed = parameters.streamed_params(model)
        return {
            "vocabulary": model.vocab_size,
            "longest": model.max_position,
            "stored": (model.quantization or model.weight_format).name,
            "plain": model.weight_format.name,
            "bytes_per_param": parameters.streamed_bytes(model) / streamed,
            "params": parameters.resident_params(model),
            "streamed": streamed,
            "assumed": bool(model.assumptions),
            "ranks": ranks,
        } if ranks else None  # fmt: skip

    def _ranked(self, model: Model, tp: int) -> dict[str, Any]:
        shape, kv = pass_shape(model, tp), model.weight_format
        mixers = Counter(layer.mixer for layer in model.layers)
        return {
            "shape": self._shape(shape),
            "weights": parameters.resident_bytes(model, tp),
            "stored": _spans(mixers, lambda mixer: stored_spans(mixer, kv, tp)),
            "read": _spans(mixers, lambda mixer: read_spans(mixer, kv, tp)),
            "state": sum(n * recurrent_state_bytes(mixer, model, tp) for mixer, n in mixers.items()),
        }

    def _shape(self, shape: PassShape) -> dict[str, Any]:
        return {
            "layers": shape.layers,
            "hidden": shape.model.hidden_size,
            "dense": shape.dense_bytes,
            "experts": [(g.payload_bits, g.bytes_per_rank, g.count, g.per_token) for g in shape.experts],
            "head": (shape.head_bits, shape.head_bytes, shape.head_params),
            "token_params": shape.token_params,
            "attention": [(s.flops_per_pair, _finite(s.limit)) for s in shape.attention],
            "state": shape.state_bytes,
            "activations": shape.activation_bytes,
            "reductions": shape.all_reduces,
            "message": shape.message_bytes,
            "logits": shape.logits,
            "kernels": [self._kernel(k) for k in shape.kernels],
        }

    def _format(self, stored: NumberFormat) -> str:
        self.formats[stored.name] = (law_key(stored), stored.payload_bits, stored.bytes)
        return stored.name

    def _kernel(self, k: Kernel) -> dict[str, Any]:
        match k:
            case Gemm():
                return {"is": "gemm", "count": k.count, "outer": k.outer, "inner": k.inner,
                        "format": self._format(k.format), "scored": k.scored, "behind": k.hidden_behind}  # fmt: skip
            case AttentionKernel():
                return {"is": "attention", "count": k.count, "heads": k.heads, "kv_heads": k.kv_heads,
                        "dims": k.head_dims, "limit": _finite(k.limit), "row": k.row_bytes,
                        "normed": k.normed}  # fmt: skip
            case LatentKernel():
                return {"is": "latent", "count": k.count, "gemms": [self._kernel(g) for g in k.gemms],
                        "format": self._format(k.format), "numbers": k.row_numbers, "row": k.row_bytes,
                        "pair": k.pair_flops, "limit": _finite(k.limit), "index": k.index_bytes}  # fmt: skip
            case ExpertsKernel():
                return {"is": "experts", "count": k.count, "experts": k.experts, "per_token": k.per_token,
                        "params": k.expert_params, "format": self._format(k.format), "gated": k.gated}  # fmt: skip
            case _:
                return {"is": "recurrent", "count": k.count, "kind": k.kind, "state": k.state_bytes}

    def card(self, card: Accelerator) -> dict[str, Any]:
        """A card's memory, peaks, constants, and the laws of its kernels by engine."""
        runs = {name: machine(card, name) for name in SERVED}
        calibration = runs["vllm"].calibration
        return {
            "memory": card.memory_torch_bytes or card.memory_driver_bytes,
            "memory_read": "torch" if card.memory_torch_bytes else "driver",
            "bandwidth": card.bandwidth,
            "flops": dict(card.flops),
            "link": link_bandwidth(card),
            "direct": card.link_bandwidth is not None,
            "family": card.family,
            "constants": {
                f.name: getattr(calibration, f.name)
                for f in fields(calibration) if isinstance(getattr(calibration, f.name), float)
            },
            "laws": {name: None if on.laws is None else self._laws(on.laws) for name, on in runs.items()},
            "notes": {name: on.notes for name, on in runs.items()},
            "band": {name: (found.low, found.high, found.basis) for name, on in runs.items() if (found := band(on))},
        }  # fmt: skip

    def _laws(self, laws: KernelLaws) -> str:
        name = f"{laws.card}/{laws.engine}"
        if name not in self.laws:
            kinds = ("gemm", "attention", "latent", "experts", "recurrent")
            self.laws[name] = {
                **{kind: {key: _law(law) for key, law in getattr(laws, kind).items()} for kind in kinds},
                "reduce": None if laws.reduce is None else {str(n): knots for n, knots in laws.reduce.ranks.items()},
                "glue_s": laws.glue_s,
                "qk_norm_s": laws.qk_norm_s,
                "source": laws.source,
            }
        return name


def _law(law: Any) -> dict[str, Any]:
    return {f.name: getattr(law, f.name) for f in fields(law) if f.name != "fit"}


def _engine(name: str) -> dict[str, Any]:
    return asdict(ENGINES[name])


def _finite(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None


def _spans(mixers: Mapping[Any, int], of: Any) -> list[tuple[float, float | None, int]]:
    """(bytes per entry over all layers, limit, tokens per entry) of a model's layers."""
    found: dict[tuple[float, int], float] = {}
    for mixer, n in mixers.items():
        span: Span
        for span in of(mixer):
            found[span.limit, span.rate] = found.get((span.limit, span.rate), 0.0) + n * span.entry_bytes
    return [(size, _finite(limit), rate) for (limit, rate), size in found.items()]
