"""A draft source in words: what tables, keys and ties print of it."""

from specplan.decide.source import DraftSource


def cost_text(s: DraftSource) -> str:
    """C of a source and where it comes from."""
    return "0 (no weights)" if s.is_weightless else f"{s.c:.4g} {s.c_origin}"


def acceptance_text(s: DraftSource) -> str:
    """Acceptance of a source in the form in which it is known, and where it comes from."""
    if s.alpha is not None:
        interval = "" if s.alpha_low is None or s.alpha_high is None else f" [{s.alpha_low:.2f}, {s.alpha_high:.2f}]"
        return f"{s.alpha:.3g}{interval} {s.alpha_origin}"
    if s.hit is not None:
        return f"{s.hit:.2g} first, then {s.continuation:.2g}, {s.alpha_origin}"
    if s.hazard is not None:
        shown = "/".join(f"{h:.2g}" for h in s.hazard[: min(4, s.kappa)])
        return f"{shown}{'/…' if s.kappa > 4 else ''} {s.alpha_origin}"
    return f"E = {s.emitted:.3g} {s.alpha_origin}"


def name_text(s: DraftSource, *, kappa: int | None = None, verify: float | None = None) -> str:
    """Name of a source, and in what it differs from a chain of `kappa` that drafts in every step."""
    extra = [] if s.kappa == kappa else [f"κ = {s.kappa}"]
    if s.coverage < 1:
        extra.append(f"{s.coverage:.0%} of steps")
    if s.nodes is not None:
        extra.append(f"{s.nodes} nodes")
    if verify is not None and s.verify not in (verify, 1.0):
        extra.append(f"v = {s.verify:.3g}")
    if s.overhead:
        extra.append(f"overhead {s.overhead:.2g}")
    return ", ".join([s.label, *extra])
