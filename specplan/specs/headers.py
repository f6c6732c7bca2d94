"""What a checkpoint's headers say against what its config implies: bytes and formats by component, headers first.

The headers lie beside a config in a folder, or come from the Hub (`specplan.specs.huggingface.hub.hub_headers`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specplan.formulas.parameters import format_of, resident_params, weights
from specplan.specs.checkpoint import CheckpointSummary, summarise, weight_sizes
from specplan.specs.safetensors import StoredTensor, read_checkpoint
from specplan.values.formats import NumberFormat, adjusted, lookup, mixed
from specplan.values.model import Access, Layer, Model

_COMPONENTS: Final = (
    ("head", re.compile(r"(?:lm_head|embed_out|^output|^head)\.")),
    ("shared_experts", re.compile(r"shared_experts?\.")),
    ("router", re.compile(r"(?:\.gate|\.router(?:\.\w+)?)\.weight")),
    ("experts", re.compile(r"\.experts\b")),
    ("attention", re.compile(r"(?:self_attn|self_attention|\.attn|\.attention)\.")),
    ("mlp", re.compile(r"\.(?:mlp|feed_forward|ffn)\.")),
)
"""Components by tensor names, the first that matches; what none matches keeps the format that its config gives."""

_DTYPES: Final = {
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
}
TOLERANCE: Final = 1e-3
"""Bytes of a component may differ by so much before headers and config are said to disagree: padding of scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Matrices of one component: numbers they stand for, their bytes with scales, and the dtype of most of them."""

    numbers: int
    n_bytes: int
    dtype: str


def with_headers(model: Model, tensors: Iterable[StoredTensor]) -> tuple[Model, CheckpointSummary]:
    """`model` with the formats that the headers hold where they differ from its config's, and the headers' summary.

    ``model.evidence`` says what the counts rest on. Numbers of parameters stay the config's; where the headers hold
    others, the summary and the evidence name the difference.
    """
    stored = list(tensors)
    summary = summarise(stored, model)
    changed, notes = model, []
    if summary.decoder_params == resident_params(model):
        for component, found in _by_component(stored, model).items():
            implied = [
                (w.size * w.copies * n, format_of(w, model)) for w, n in weights(model)
                if w.component == component and w.access is Access.MATMUL
            ]  # fmt: skip
            n_bytes = sum(size * form.bytes for size, form in implied)
            if sum(size for size, _ in implied) != found.numbers or abs(found.n_bytes - n_bytes) <= TOLERANCE * n_bytes:
                continue
            form = _format(found, [form for _, form in implied])
            notes.append(f"{component} in {found.n_bytes:,} bytes ({form.name}), by its config {n_bytes:,.0f}")
            changed = _stored_in(changed, component, form)
        if notes:
            summary = summarise(stored, changed)
    evidence = f"headers of {len(stored):,} tensors"
    if notes:
        evidence += f"; {'; '.join(notes)}: the headers are used"
    if summary.disagreements:
        evidence += f"; {'; '.join(summary.disagreements)}: the config is counted"
    return replace(changed, evidence=evidence), summary


def _by_component(stored: list[StoredTensor], model: Model) -> dict[str, _Stored]:
    found: dict[str, list[tuple[StoredTensor, int, int]]] = {}
    for tensor, numbers, n_bytes in weight_sizes(stored, model):
        component = next((name for name, pattern in _COMPONENTS if pattern.search(tensor.name)), None)
        if component is not None:
            found.setdefault(component, []).append((tensor, numbers, n_bytes))
    return {
        component: _Stored(
            numbers=sum(numbers for _, numbers, _ in rows),
            n_bytes=sum(n_bytes for _, _, n_bytes in rows),
            dtype=max(rows, key=lambda row: row[1])[0].dtype,
        )
        for component, rows in found.items()
    }


def _format(found: _Stored, implied: list[NumberFormat]) -> NumberFormat:
    """Named as the stored dtype, or as the config's format of as many bits, with the overhead that the headers hold."""
    bits = found.n_bytes * 8 / found.numbers
    plain = _DTYPES.get(found.dtype)
    known = [form for form in implied if form.payload_bits <= bits < form.payload_bits * 1.5]
    base = known[0] if known else None if plain is None else lookup(plain)
    if base is None or not base.payload_bits <= bits < 2 * base.payload_bits:
        return mixed(bits)
    return base if base.bits == bits else adjusted(base, bits)


def _stored_in(model: Model, component: str, form: NumberFormat) -> Model:
    def rest(formats: tuple[tuple[str, NumberFormat], ...]) -> tuple[tuple[str, NumberFormat], ...]:
        return tuple(entry for entry in formats if entry[0].partition(".")[0] != component)

    def layer(of: Layer) -> Layer:
        return replace(of, formats=rest(of.formats)) if of.formats else of

    made = {of: layer(of) for of in set(model.layers)}
    return replace(
        model, formats=(*rest(model.formats), (component, form)), layers=tuple(made[of] for of in model.layers)
    )


def folder_headers(folder: Path) -> tuple[StoredTensor, ...] | None:
    """Tensors of the safetensors files in `folder`; None where there are none."""
    if not any(folder.glob("*.safetensors")) and not (folder / "model.safetensors.index.json").is_file():
        return None
    return read_checkpoint(folder)
