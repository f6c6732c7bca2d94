"""Which known types a config of an unknown one fits, by its structure: what they read of it, and what they count."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from specplan.errors import SpecplanError
from specplan.formulas.kv_cache import kv_bytes_per_token
from specplan.formulas.parameters import resident_params, streamed_params
from specplan.specs.huggingface.families import FAMILIES
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Types that count one config alike.

    Attributes
    ----------
    names : tuple of str
        The one that is spelt most like the config's own type first.
    params : int
        Resident parameters that they count.
    assumptions : int
        How much the one that assumes least takes from elsewhere.
    """

    names: tuple[str, ...]
    params: int
    assumptions: int


def alike(counted_as: Callable[[str], Model], stated: str) -> tuple[Likeness, ...]:
    """Known types that read every structural field and assume least, those that count alike together.

    What most types agree on comes first. Spelling orders only types that count alike.

    Parameters
    ----------
    counted_as : callable
        Counts the config as a given type, or raises a `SpecplanError`, as for a field that the type does not read.
    stated : str
        The config's own type.
    """
    found: dict[tuple[float, ...], list[tuple[int, str]]] = {}
    for name in FAMILIES:
        try:
            model = counted_as(name)
        except SpecplanError:
            continue
        key = (resident_params(model), streamed_params(model), kv_bytes_per_token(model))
        found.setdefault(key, []).append((len(model.assumptions), name))
    kinds = [
        Likeness(
            names=tuple(sorted((name for _, name in of), key=lambda name: (-_spelt_alike(name, stated), name))),
            params=int(key[0]),
            assumptions=min(n for n, _ in of),
        )
        for key, of in found.items()
    ]
    least = min((kind.assumptions for kind in kinds), default=0)
    return tuple(sorted((kind for kind in kinds if kind.assumptions == least), key=lambda kind: -len(kind.names)))


def _spelt_alike(name: str, stated: str) -> float:
    return difflib.SequenceMatcher(None, name, stated.lower()).ratio()
