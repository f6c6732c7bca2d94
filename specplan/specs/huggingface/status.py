"""Which architectures can be counted: generated from the table, never written by hand."""

from dataclasses import dataclass

from specplan.specs.huggingface.families import FAMILIES, REFUSED
from specplan.specs.huggingface.fields import recorded, served_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureStatus:
    """One ``model_type``.

    Attributes
    ----------
    model_type : str
    status : str
        ``exact``: counted, and compared with transformers' own modules; ``counted``: counted by a row that transformers
        has no causal language model for; ``wrapper``: multimodal, its text config is counted; ``refused``.
    note : str
        The text config of a wrapper, or the reason of a refusal.
    """

    model_type: str
    status: str
    note: str = ""


def architecture_statuses() -> tuple[ArchitectureStatus, ...]:
    """Status of every type with a row, every causal language model of transformers, and every known wrapper.

    Examples
    --------
    >>> {s.model_type: s.status for s in architecture_statuses()}["llama"]
    'exact'
    """
    causal, wrappers, open_ = set(recorded()["causal_lm"]), recorded()["wrappers"], recorded()["open_wrappers"]
    found = []
    # A wrapper may hold a wrapper (Qwen-Omni's thinker).
    wrappers = {w: wrappers.get(inner, inner) for w, inner in wrappers.items()}
    holders = {w for w, inner in wrappers.items() if inner in FAMILIES}
    for name in sorted({*FAMILIES, *REFUSED, *causal, *holders, *open_}):
        if name in FAMILIES:
            found.append(ArchitectureStatus(model_type=name, status="exact" if name in causal else "counted"))
        elif wrappers.get(name) in FAMILIES:
            found.append(ArchitectureStatus(model_type=name, status="wrapper", note=f"text: {wrappers[name]}"))
        elif name in open_ and name not in REFUSED:
            found.append(ArchitectureStatus(model_type=name, status="wrapper", note="text: any type in this table"))
        else:
            note = REFUSED.get(name, "no row in the table")
            found.append(ArchitectureStatus(model_type=name, status="refused", note=note))
    return tuple(found)


def class_statuses() -> tuple[ArchitectureStatus, ...]:
    """Status of every class of vLLM's text registry; its note names the type, and the reason where it is refused.

    Examples
    --------
    >>> found = {s.model_type: s for s in class_statuses()}
    >>> len(found), found["ChatGLMModel"].status, found["ChatGLMModel"].note
    (118, 'counted', 'chatglm')
    """
    by_type = {s.model_type: s for s in architecture_statuses()}
    found = []
    for name, model_type in served_classes().items():
        status = by_type[model_type]
        note = f"{model_type}: {status.note}" if status.note else model_type
        found.append(ArchitectureStatus(model_type=name, status=status.status, note=note))
    return tuple(found)
