"""Which tensor-parallel degrees a model can take."""

from specplan.errors import InputError
from specplan.values.model import Attention, CompressedAttention, LatentAttention, Model


def require_ranks(model: Model, tp: int) -> None:
    """Refuse a degree that engines refuse: it must divide the query heads, and divide or be divided by the kv heads.

    Raises
    ------
    InputError
        Naming the degree, the heads and degrees that would do.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> require_ranks(load_model("phi-4"), 8)
    Traceback (most recent call last):
    specplan.errors.InputError: --tensor-parallel-size 8 neither divides the 10 key-value heads of phi-4 nor is a ...
    """
    if tp < 1:
        raise InputError(f"--tensor-parallel-size {tp}: must be at least 1")
    for mixer in {layer.mixer for layer in model.layers}:
        if not isinstance(mixer, (Attention, LatentAttention, CompressedAttention)):
            continue
        if mixer.heads % tp:
            raise InputError(
                f"--tensor-parallel-size {tp} does not divide the {mixer.heads} attention heads of {model.name}; "
                f"use one of {', '.join(str(d) for d in range(1, mixer.heads + 1) if mixer.heads % d == 0)}"
            )
        if isinstance(mixer, Attention) and mixer.kv_heads % tp and tp % mixer.kv_heads:
            raise InputError(
                f"--tensor-parallel-size {tp} neither divides the {mixer.kv_heads} key-value heads of {model.name} "
                "nor is a multiple of them"
            )
