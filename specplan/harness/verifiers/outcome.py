"""Verdicts as tensors on the device, and their one way to the host, where bad input is raised."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specplan.errors import InputError
from specplan.verify.categorical import SUM_TOLERANCE
from specplan.verify.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A test of each row that was computed on the device and is read on the host.

    Attributes
    ----------
    what : str
        What the rows are.
    value : Tensor, shape (B, R)
        Sum, largest score, token or uniform of each row.
    good : Tensor of bool, shape (B, R)
        False for a row in use that is not what it must be.
    expected : str
        What it must be.
    """

    what: str
    value: Tensor
    good: Tensor
    expected: str

    def raise_if_bad(self, first: int = 0) -> None:
        """Raise `InputError` that names the first bad row; waits for the device. `first` is added to the request."""
        bad = torch.nonzero(~self.good.cpu())
        if len(bad):
            b, i = bad[0].tolist()
            value = float(self.value[b, i])
            seen = "NaN" if value != value else f"{value:g}"
            raise InputError(f"{self.what} of request {first + b}, position {i}: {seen}; expected {self.expected}")


def check_rows(what: str, rows: Tensor, used: Tensor, *, thorough: bool = True) -> Check:
    """Whether each row in use is a distribution.

    Thorough: it sums to 1, which NaN anywhere prevents. Otherwise only its first entry is asked for NaN, which is
    enough for rows of `probabilities`: it makes a bad row NaN throughout.
    """
    if thorough:
        seen = rows.sum(dim=-1)
        good = (seen - 1.0).abs() <= SUM_TOLERANCE
    else:
        seen = rows[..., 0]
        good = ~seen.isnan()
    return Check(what=what, value=seen, good=good | ~used, expected="probabilities that sum to 1")


def check_scores(what: str, rows: Tensor, used: Tensor) -> Check:
    """Whether each row in use is free of NaN."""
    top = rows.amax(dim=-1)
    return Check(what=what, value=top, good=~top.isnan() | ~used, expected="scores that are not NaN")


def check_tokens(draft: Tensor, vocab: int) -> Check:
    """Whether each drafted token is -1 or inside the vocabulary."""
    good = (draft >= -1) & (draft < vocab)
    return Check(what="draft token", value=draft, good=good, expected=f"a token in [0, {vocab}) or -1 for none")


def check_uniforms(u: Tensor) -> Check:
    """Whether each uniform lies in [0, 1)."""
    return Check(what="uniform", value=u, good=(u >= 0.0) & (u < 1.0), expected="a number in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTensors:
    """`specplan.verify.outcome.Outcome` on the device, with the checks that its inputs have yet to pass.

    Attributes
    ----------
    tokens, accepted, drafted, reached, overlap, nodes : Tensor
        As in `Outcome`.
    checks : tuple of Check
        Read by `to_host`.
    """

    tokens: Tensor
    accepted: Tensor
    drafted: Tensor
    reached: Tensor
    overlap: Tensor | None = None
    nodes: Tensor | None = None
    checks: tuple[Check, ...] = ()

    def to_host(self, first: int = 0) -> Outcome:
        """Copy to the host; `first` is the number of the first request, for messages.

        Raises
        ------
        InputError
            Naming the first row that is not a distribution, token or uniform.
        """
        for check in self.checks:
            check.raise_if_bad(first)
        return Outcome(
            tokens=self.tokens.cpu().numpy(),
            accepted=self.accepted.cpu().numpy(),
            drafted=self.drafted.cpu().numpy(),
            reached=self.reached.cpu().numpy(),
            overlap=None if self.overlap is None else self.overlap.double().cpu().numpy(),
            nodes=None if self.nodes is None else self.nodes.cpu().numpy(),
        )


def concatenated(parts: Sequence[OutcomeTensors]) -> OutcomeTensors:
    """One outcome of consecutive groups of requests; lower trees are padded to the highest."""
    checks = tuple(
        Check(
            what=group[0].what,
            value=torch.cat([check.value for check in group]),
            good=torch.cat([check.good for check in group]),
            expected=group[0].expected,
        )
        for group in zip(*(part.checks for part in parts), strict=True)
    )
    overlap = [o for part in parts if (o := part.overlap) is not None]
    nodes = [n for part in parts if (n := part.nodes) is not None]
    return OutcomeTensors(
        tokens=_stacked([part.tokens for part in parts], -1),
        accepted=torch.cat([part.accepted for part in parts]),
        drafted=torch.cat([part.drafted for part in parts]),
        reached=_stacked([part.reached for part in parts], False),
        overlap=_stacked(overlap, torch.nan) if overlap else None,
        nodes=_stacked(nodes, -1) if nodes else None,
        checks=checks,
    )


def _stacked(columns: list[Tensor], padding: float) -> Tensor:
    width = max(column.shape[1] for column in columns)
    pad = torch.nn.functional.pad
    return torch.cat([pad(column, (0, width - column.shape[1]), value=padding) for column in columns])


def chain_outcome(
    draft: Tensor,
    drafted: Tensor,
    accepted: Tensor,
    last: Tensor,
    overlap: Tensor | None,
    checks: tuple[Check, ...],
) -> OutcomeTensors:
    """`OutcomeTensors` of chains: `accepted` leading tokens of `draft`, then `last`."""
    position = torch.arange(draft.shape[1], device=draft.device)
    tokens = torch.nn.functional.pad(torch.where(position < accepted[:, None], draft, -1), (0, 1), value=-1)
    tokens = tokens.scatter(1, accepted[:, None], last[:, None])
    reached = (position <= accepted[:, None]) & (position < drafted[:, None])
    return OutcomeTensors(
        tokens=tokens,
        accepted=accepted,
        drafted=drafted,
        reached=reached,
        overlap=None if overlap is None else torch.where(reached, overlap, torch.nan),
        checks=checks,
    )
