"""A shipped model in another number format: what a checkpoint of the same shape, quantised, streams."""

from dataclasses import replace

from specplan.errors import InputError
from specplan.formulas.parameters import format_of, weights
from specplan.values.formats import NumberFormat, lookup
from specplan.values.model import Access, Model

GGUF_MIXES = {"q2_k": "q2_k", "q3_k_m": "q3_k", "q4_k_m": "q4_k", "q4_k_s": "q4_k", "q5_k_m": "q5_k", "q6_k": "q6_k"}
"""Mixtures of llama.cpp by the block format of most of their weights."""

GGUF_HEAD = "q6_k"
"""Block format in which llama.cpp's mixtures keep the output head."""

ALIASES = {"gptq-int4": "gptq", "awq-int4": "awq", "gptq-int8": "int8-gptq-g128", "none": "bfloat16"}


def requantized(model: Model, name: str) -> Model:
    """`model` with its linear layers in the format `name`, as a quantised checkpoint of it would hold them.

    Parameters
    ----------
    model : Model
        Its own quantisation, and formats that single layers state, give way.
    name : str
        ``fp8``, ``fp8-block``, ``nvfp4``, ``mxfp4``, ``awq``, ``gptq-int4``, ``int8``, ``bf16``, a GGUF type or mixture
        (``q4_k_m``), or any format that `specplan.values.formats.lookup` knows.

    Raises
    ------
    InputError
        For an unknown format.

    Notes
    -----
    Embedding, head, norms and router keep the model's own format, except in GGUF mixtures, whose head is in Q6_K. MXFP4
    is that of gpt-oss: experts alone where there are any.

    Examples
    --------
    >>> from specplan.formulas.parameters import streamed_bytes
    >>> from specplan.specs.catalog import load_model
    >>> llama = load_model("llama3.1-8b")
    >>> [round(streamed_bytes(requantized(llama, f)) / 1e9, 2) for f in ("bf16", "fp8", "awq", "q4_k_m")]
    [15.01, 8.03, 4.68, 4.36]
    """
    wanted = name.strip().lower()
    mixture = GGUF_MIXES.get(wanted)
    try:
        stored = lookup(mixture or ALIASES.get(wanted, wanted))
    except InputError as error:
        raise InputError(f"--quantization {name}: {error}") from None
    layers = tuple(replace(layer, formats=()) for layer in model.layers)
    drafting = tuple(replace(layer, formats=()) for layer in model.mtp_layers)
    plain = replace(model, layers=layers, mtp_layers=drafting, formats=(), unquantized=(), quantization=None)
    if stored.payload_bits >= 16:
        return replace(plain, weight_format=stored)
    routed = any(w.routed is not None for w, _ in weights(model))
    left = ("attention", "recurrent", "mlp", "shared_experts") if stored.name == "mxfp4" and routed else ()
    head: tuple[tuple[str, NumberFormat], ...] = (("head", lookup(GGUF_HEAD)),) if mixture else ()
    return replace(plain, quantization=stored, unquantized=left, formats=head)


def stored_formats(model: Model) -> tuple[str, ...]:
    """Names of the formats in which the streamed weights of `model` stand.

    >>> from specplan.specs.catalog import load_model
    >>> stored_formats(requantized(load_model("llama3.1-8b"), "fp8"))
    ('bfloat16', 'fp8')
    """
    return tuple(sorted({format_of(w, model).name for w, _ in weights(model) if w.access is Access.MATMUL}))
