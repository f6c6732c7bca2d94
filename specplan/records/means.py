"""What an engine says in means alone, where it keeps no counters."""

from dataclasses import dataclass

from specplan.records.laws import demand, means_laws


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means over steps without the counts behind them; no interval can follow from these.

    Attributes
    ----------
    tokens_per_step : float or None
        Tokens emitted per verify step, bonus included, over all steps.
    tokens_per_drafted_step : float or None
        The same over the steps that had a draft.
    accepted_per_drafted : float or None
        Accepted over drafted (verified) tokens; not alpha.
    draft_len : int or None
        Draft positions verified per step, where the engine always verifies the same number.
    chain_len : int or None
        Longest accepted path: the draft length of a chain, the depth of a tree.
    position_rates : tuple of float or None
        Entry i: share of drafts with more than i tokens accepted.

    Raises
    ------
    InputError
        For means that break a law of `specplan.records.laws`.
    """

    tokens_per_step: float | None = None
    tokens_per_drafted_step: float | None = None
    accepted_per_drafted: float | None = None
    draft_len: int | None = None
    chain_len: int | None = None
    position_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse means that cannot be."""
        demand(means_laws(self), "means")
