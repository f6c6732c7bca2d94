"""A draft source in words: what tables, keys and ties print of it."""

from specplan.decide.source import Placed


def cost_text(s: Placed) -> str:
    """C of a source and where it comes from."""
    return "0 (no weights)" if s.is_weightless else f"{s.c:.4g} {s.c_origin}"


def acceptance_text(s: Placed) -> str:
    """Acceptance of a source in the form in which it is known, and where it comes from."""
    of, origin = s.source, s.source.alpha_origin
    if of.alpha is not None:
        interval = f" [{of.alpha.low:.2f}, {of.alpha.high:.2f}]" if of.alpha.is_range else ""
        return f"{of.alpha.best:.3g}{interval} {origin}"
    if of.hit is not None:
        return f"{of.hit:.2g} first, then {of.continuation:.2g}, {origin}"
    if of.hazard:
        shown = "/".join(f"{h:.2g}" for h in of.hazard[: min(4, s.kappa)])
        return f"{shown}{'/…' if s.kappa > 4 else ''} {origin}"
    return f"E = {float(s.emitted()):.3g} {origin}"


def name_text(s: Placed, *, kappa: int | None = None, verify: float | None = None) -> str:
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
