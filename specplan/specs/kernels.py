"""Kernel laws of shipped cards: JSON files in ``hardware_profiles/kernels`` that `benchmarks/fit_kernels.py` writes."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.values.kernels import (
    AttentionLaw,
    ExpertsLaw,
    Fit,
    GemmLaw,
    KernelLaws,
    LatentLaw,
    RecurrentLaw,
    ReduceLaw,
)

_LAWS: Final = {
    "gemm": GemmLaw,
    "attention": AttentionLaw,
    "latent": LatentLaw,
    "experts": ExpertsLaw,
    "recurrent": RecurrentLaw,
}


GDDR_BELOW: Final = 1.2e12
"""Ampere cards with less bandwidth than this have GDDR memory."""


def kernel_laws(folder: Path, card: str, family: str, bandwidth: float) -> Mapping[str, KernelLaws]:
    """Laws by engine of `card`, else of the first card of its family that was measured; empty where none was.

    Ampere's cards with GDDR memory borrow from Ada's, which have it too: an A100's shares are those of its HBM. A
    format that one engine's tables lack is taken from another engine's of the same card.
    """
    own = folder / f"{card}.json"
    if own.is_file():
        return _read(own)[1]
    lender = "ada" if family == "ampere" and bandwidth < GDDR_BELOW else family
    return _by_family(folder).get(lender, MappingProxyType({}))


@cache
def _by_family(folder: Path) -> Mapping[str, Mapping[str, KernelLaws]]:
    found: dict[str, Mapping[str, KernelLaws]] = {}
    for path in sorted(folder.glob("*.json")):
        family, engines = _read(path)
        found.setdefault(family, engines)
    return MappingProxyType(found)


@cache
def _read(path: Path) -> tuple[str, Mapping[str, KernelLaws]]:
    try:
        document = json.loads(path.read_text("utf-8"))
        engines = {name: _laws(path.stem, name, block) for name, block in document["engines"].items()}
        family = str(document["family"])
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a JSON file of kernel laws: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not kernel laws as benchmarks/fit_kernels.py writes them: {error!r}") from None
    return family, MappingProxyType({name: _filled(laws, engines) for name, laws in engines.items()})


def _laws(card: str, engine: str, block: Mapping[str, Any]) -> KernelLaws:
    kinds = {
        kind: MappingProxyType({key: made(**_plain(made, law)) for key, law in block.get(kind, {}).items()})
        for kind, made in _LAWS.items()
    }
    reduce = block.get("reduce")
    ranks = None if reduce is None else {int(n): _pairs(knots) for n, knots in reduce["ranks"].items()}
    return KernelLaws(
        card=card,
        engine=engine,
        source=str(block["source"]),
        glue_s=_positive(block["glue_s"], "glue_s"),
        qk_norm_s=_positive(block["qk_norm_s"], "qk_norm_s"),
        reduce=None if ranks is None or reduce is None else ReduceLaw(ranks=ranks, fit=Fit(**reduce["fit"])),
        **kinds,
    )


def _plain(made: type, law: Mapping[str, Any]) -> dict[str, Any]:
    known = {f.name for f in fields(made)}
    out: dict[str, Any] = {}
    for name, value in law.items():
        if name == "fit":
            out[name] = Fit(**value)
        elif name in ("shares", "positions", "rows", "shapes"):
            out[name] = _pairs(value)
        elif name in known:
            out[name] = _positive(value, name)
    return out


def _pairs(knots: Any) -> tuple[tuple[float, float], ...]:
    return tuple((_positive(a, "knot"), _positive(b, "knot")) for a, b in knots)


def _positive(value: Any, name: str) -> float:
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name} is {value!r}, expected a number of at least 0")
    return number


_VARIANTS: Final = ("core", "-kv8", "-window", "-ungated", "-tuned")
"""What a key is called under which one engine's own kernel was measured: no other engine runs it."""


def _filled(laws: KernelLaws, engines: Mapping[str, KernelLaws]) -> KernelLaws:
    others = [other for other in engines.values() if other is not laws]
    merged: dict[str, Any] = {}
    for kind in _LAWS:
        own = getattr(laws, kind)
        lent = {
            k: v for o in reversed(others) for k, v in getattr(o, kind).items() if not any(x in k for x in _VARIANTS)
        }
        # A core with the engine's own multiplications is all that a latent block needs.
        merged[kind] = own if "core" in own else MappingProxyType({**lent, **own})
    reduce = laws.reduce or next((o.reduce for o in others if o.reduce is not None), None)
    return replace(laws, reduce=reduce, **merged)
