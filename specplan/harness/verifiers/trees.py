"""Rules for trees: greedy, sampled along siblings, SGLang's. What each does is told in `specplan.verify`.

No walk: whether a node would be accepted among its siblings does not depend on the path to it, so all nodes are judged
at once, and the accepted path is the set of nodes whose ancestors and self are each the first accepted of their
siblings. The shape of the trees is a host array; tokens are tensors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplan.errors import InputError
from specplan.harness.verifiers.categorical import draw
from specplan.harness.verifiers.logits import chunks, to_device
from specplan.harness.verifiers.outcome import (
    Check,
    OutcomeTensors,
    check_rows,
    check_scores,
    check_tokens,
    check_uniforms,
)
from specplan.verify.sglang import checked_thresholds
from specplan.verify.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """A batch of trees on the device.

    Attributes
    ----------
    tree : Tree
        Shape, on the host.
    draft : Tensor, shape (B, N)
        Tokens.
    row : Tensor, shape (B, N)
        Row of the parent's distribution: its index + 1, 0 for the context.
    above, before : Tensor of float32, shape (B, N, N)
        Entry (b, j, i) is 1 where i is an ancestor, or an earlier sibling, of j. Counts up to N are exact in float32.
    live : Tensor of bool, shape (B, N)
        Nodes that hold a token, as all their ancestors do.
    """

    tree: Tree
    draft: Tensor
    row: Tensor
    above: Tensor
    before: Tensor
    live: Tensor

    @classmethod
    def of(cls, parents: npt.ArrayLike, draft: Tensor) -> "_Nodes":
        tree = Tree.of(parents, *draft.shape)
        device = draft.device
        above = to_device(tree.ancestors.astype(np.float32), device)
        absent = draft < 0
        return cls(
            tree=tree,
            draft=draft,
            row=to_device(tree.parents + 1, device),
            above=above,
            before=to_device(tree.earlier_siblings.astype(np.float32), device),
            live=~absent & ~_any(above, absent),
        )

    def at_parents(self, rows: Tensor) -> Tensor:
        """Entry of each node's token in its parent's row, float64; 0 for nodes that are not there; shape (B, N)."""
        vocab = rows.shape[-1]
        index = self.row * vocab + self.draft.clamp(0, vocab - 1)
        return torch.where(self.live, rows.flatten(1).gather(1, index).double(), 0.0)

    def repeated(self) -> Tensor:
        """Nodes whose token an earlier sibling holds; shape (B, N)."""
        same = (self.draft[:, :, None] == self.draft[:, None, :]) & self.live[:, None, :]
        return (same & (self.before > 0)).any(dim=-1)

    def used(self) -> tuple[Tensor, Tensor]:
        """Rows (B, N + 1) of the target, and of the draft, that a verdict can depend on."""
        target = torch.nn.functional.pad(self.live, (1, 0), value=True)
        branching = torch.zeros_like(target, dtype=torch.int64).scatter_add(1, self.row, self.live.long()) > 0
        return target, branching


def _any(relation: Tensor, flag: Tensor) -> Tensor:
    """Nodes related to some node that is flagged; shape (B, N)."""
    return (relation @ flag.to(relation.dtype)[..., None])[..., 0] > 0


def _outcome(
    nodes: _Nodes, accept: Tensor, last_token: "_LastToken", chance: Tensor | None, checks: tuple[Check, ...]
) -> OutcomeTensors:
    """`OutcomeTensors` of the verdicts `accept`, shape (B, N), that hold if all earlier siblings are rejected.

    `chance`, shape (B, N + 1), is the probability that some child of the row's node is accepted.
    """
    accept = accept & nodes.live
    first = accept & ~_any(nodes.before, accept)
    on_path = first & ~_any(nodes.above, ~first)
    accepted = on_path.sum(dim=1)
    batch, n = nodes.draft.shape
    height = nodes.tree.height
    device = nodes.draft.device
    # One column more takes the nodes that are not on the path.
    depth = torch.where(on_path, to_device(nodes.tree.depth, device), height)
    index = torch.arange(n, device=device).expand(batch, n)
    path = torch.full((batch, height + 1), -1, device=device).scatter(1, depth, index)[:, :height]
    tokens = torch.full((batch, height + 2), -1, device=device).scatter(1, depth, nodes.draft)[:, : height + 1]
    tokens = torch.where(torch.arange(height + 1, device=device) < accepted[:, None], tokens, -1)
    rows = torch.nn.functional.pad(path + 1, (1, 0))  # row of the context, then of each accepted node
    end = rows.gather(1, accepted[:, None])
    tokens = tokens.scatter(1, accepted[:, None], last_token(nodes, end[:, 0])[:, None])
    has_children = nodes.used()[1].gather(1, end)
    position = torch.arange(height, device=device)
    reached = (position < accepted[:, None]) | ((position == accepted[:, None]) & has_children)
    overlap = None
    if chance is not None:
        overlap = torch.where(reached, chance.gather(1, rows[:, :height]), torch.nan)
    return OutcomeTensors(
        tokens=tokens,
        accepted=accepted,
        drafted=nodes.live.sum(dim=1),
        reached=reached,
        overlap=overlap,
        nodes=path,
        checks=checks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Argmax:
    best: Tensor

    def __call__(self, nodes: _Nodes, row: Tensor) -> Tensor:
        del nodes
        return self.best.gather(1, row[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromResidual:
    """Draws from the row's residual max(p - c q, 0) without the children, which were all rejected."""

    p: Tensor
    q: Tensor | None
    c: Tensor | None
    u: Tensor

    def __call__(self, nodes: _Nodes, row: Tensor) -> Tensor:
        request = torch.arange(len(row), device=row.device)
        target = self.p[request, row]
        left = target
        if self.q is not None and self.c is not None:
            # At a leaf c is 0. Its row of q is then not in use and may hold NaN; `draw` falls back to the target.
            c = self.c.gather(1, row[:, None]).to(target.dtype)
            left = torch.addcmul(target, self.q[request, row], c, value=-1).clamp_(min=0.0)
        rejected = nodes.live & (nodes.row == row[:, None])
        token = nodes.draft.clamp(0, left.shape[-1] - 1)
        ceiling = torch.where(rejected, 0.0, torch.inf).to(left.dtype)
        left = left.scatter_reduce(1, token, ceiling, "amin", include_self=True)
        return draw(left, self.u, target)


_LastToken = _Argmax | _FromResidual


def accept_tree_greedy(scores: Tensor, draft: Tensor, *, parents: npt.ArrayLike) -> OutcomeTensors:
    """Descend to the child that equals the argmax; see `specplan.verify.tree.accept_tree_greedy`.

    Parameters
    ----------
    scores : Tensor, shape (B, N + 1, V)
        Logits or probabilities of the target after the context (row 0) and after node j (row j + 1).
    draft : Tensor of int64, shape (B, N)
        Token of each node; -1 for a node that is not there.
    parents : array_like of int, shape (N,) or (B, N)
        Index of each node's parent, -1 for the context; on the host.

    Examples
    --------
    >>> scores = torch.tensor([[[0.0, 1, 0], [1, 0, 0], [0, 0, 1]]])
    >>> accept_tree_greedy(scores, torch.tensor([[0, 1]]), parents=[-1, -1]).tokens.tolist()
    [[1, 2]]
    """
    nodes = _Nodes.of(parents, draft)
    checks = (
        check_tokens(draft, scores.shape[-1]),
        check_scores("target scores", scores, nodes.used()[0]),
    )
    best = scores.argmax(dim=-1)
    return _outcome(nodes, best.gather(1, nodes.row) == draft, _Argmax(best=best), None, checks)


def accept_tree(
    p: Tensor,
    q: Tensor | None,
    draft: Tensor,
    u: Tensor,
    *,
    parents: npt.ArrayLike,
    replacement: bool = True,
    thorough: bool = True,
) -> OutcomeTensors:
    r"""Verify a sampled tree, siblings in order; see `specplan.verify.tree.accept_tree`.

    Along the siblings of a node the residual keeps the form :math:`r \propto \max(p - c\,q, 0)`: rejecting a sibling
    drawn from :math:`s = q / m` (m: mass of q that is left) raises c by Z/m, Z being the mass of the residual. So one
    pass over a row per sibling that has another after it is enough, and none for chosen siblings.

    Parameters
    ----------
    p : Tensor, shape (B, N + 1, V)
        Target distributions after the context (row 0) and after node j (row j + 1).
    q : Tensor, shape (B, N + 1, V), or None
        Row j + 1: distribution from which the children of node j were drawn; None for chosen siblings.
    draft : Tensor of int64, shape (B, N)
        Token of each node; -1 for a node that is not there.
    u : Tensor, shape (B, N + 1)
        Uniforms in [0, 1): the coin of each node, then the one that draws the last token.
    parents : array_like of int, shape (N,) or (B, N)
        Index of each node's parent, -1 for the context; on the host.
    replacement : bool
        Whether siblings were drawn from q independently, or each from what its predecessors left.
    thorough : bool
        As in `accept_standard`.

    Examples
    --------
    >>> p = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]])
    >>> coins = torch.tensor([[0.5, 0.9, 0.0]])
    >>> accept_tree(p, None, torch.tensor([[0, 1]]), coins, parents=[-1, -1]).tokens.tolist()
    [[1, 0]]
    """
    nodes = _Nodes.of(parents, draft)
    checks = _tree_checks(nodes, p, q, u, columns=draft.shape[1] + 1, thorough=thorough)
    chance_at = nodes.at_parents(p)
    coin = u[:, :-1].double()
    if q is None:
        mine = torch.where(nodes.repeated(), 0.0, chance_at)
        left = (1.0 - (nodes.before.double() @ mine[..., None])[..., 0]).clamp(min=0.0)
        accept, chance, c = coin * left < mine, _quotient(mine, left), None
    else:
        accept, chance, c = _judge_siblings(nodes, p, q, chance_at, coin, replacement=replacement)
    none_accepted = torch.ones((len(draft), draft.shape[1] + 1), dtype=torch.float64, device=p.device)
    none_accepted = none_accepted.scatter_reduce(1, nodes.row, torch.where(nodes.live, 1.0 - chance, 1.0), "prod")
    last = _FromResidual(p=p, q=q, c=c, u=u[:, -1])
    return _outcome(nodes, accept, last, 1.0 - none_accepted, checks)


def _quotient(mine: Tensor, left: Tensor) -> Tensor:
    return torch.where(mine > 0.0, mine / left, 0.0).clamp(max=1.0)


def _judge_siblings(
    nodes: _Nodes, p: Tensor, q: Tensor, p_at: Tensor, coin: Tensor, *, replacement: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Verdict and chance of each node if its earlier siblings are rejected, and c of each row after all its children.

    Invariant before rank t: each row with more than t children has its residual max(p - c q, 0) without the chosen
    siblings, of mass `left`; `drawable` is the mass of q that siblings without replacement have left.
    """
    shape = (len(nodes.draft), nodes.draft.shape[1] + 1)
    c = torch.zeros(shape, dtype=torch.float64, device=p.device)
    left, drawable, chosen_mass = torch.ones_like(c), torch.ones_like(c), torch.zeros_like(c)
    accept = torch.zeros_like(nodes.live)
    chance = torch.zeros_like(p_at)
    q_at = nodes.at_parents(q)
    repeated = nodes.repeated()
    rank = nodes.tree.rank
    for t in range(int(rank.max(initial=-1)) + 1):
        b_host, j_host = np.nonzero(rank == t)
        r_host = nodes.tree.parents[b_host, j_host] + 1
        b, j, r = (to_device(a, p.device) for a in (b_host, j_host, r_host))
        here = nodes.live[b, j]
        qx = q_at[b, j]
        mine = torch.where(repeated[b, j], 0.0, (p_at[b, j] - c[b, r] * qx).clamp(min=0.0))
        sampled = (qx > 0.0) if replacement else (qx > 0.0) & ~repeated[b, j]
        # A sibling drawn from s = q/m is accepted with min(1, (mine/left) / (qx/m)), a chosen one with mine/left.
        mass = torch.maximum(drawable[b, r], qx)
        weight = torch.where(sampled, qx / torch.where(mass > 0.0, mass, 1.0), 1.0)
        accept[b, j] = coin[b, j] * weight * left[b, r] < mine
        chance[b, j] = _quotient(mine, weight * left[b, r])
        drawn, chosen = here & sampled, here & ~sampled
        c[b, r] += torch.where(drawn, left[b, r] / torch.where(mass > 0.0, mass, 1.0), 0.0)
        chosen_mass[b, r] += torch.where(chosen, mine, 0.0)
        if not replacement:
            drawable[b, r] -= torch.where(drawn, qx, 0.0)
        b_host, j_host = np.nonzero(rank == t + 1)
        if len(b_host):
            r_host = nodes.tree.parents[b_host, j_host] + 1
            b, r = to_device(b_host, p.device), to_device(r_host, p.device)
            left[b, r] = (_positive_mass(p, q, b, r, c[b, r]) - chosen_mass[b, r]).clamp(min=0.0)
    return accept, chance, c


def _positive_mass(p: Tensor, q: Tensor, b: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Sum of max(p - c q, 0) over the rows (b, r), in chunks; shape of b."""
    sums = [
        (p[b[s], r[s]] - q[b[s], r[s]].mul_(c[s, None].to(q.dtype))).clamp_(min=0.0).sum(dim=-1)
        for s in chunks(len(b), p.shape[-1], p.device)
    ]
    return torch.cat(sums).double()


def _tree_checks(
    nodes: _Nodes, p: Tensor, q: Tensor | None, u: Tensor, *, columns: int, thorough: bool
) -> tuple[Check, ...]:
    batch, n = nodes.draft.shape
    expected = {"p": (batch, n + 1, p.shape[-1]), "q": (batch, n + 1, p.shape[-1]), "u": (batch, columns)}
    for name, tensor in (("p", p), ("q", q), ("u", u)):
        if tensor is not None and tuple(tensor.shape) != expected[name]:
            raise InputError(f"{name}: expected shape {expected[name]}, got {tuple(tensor.shape)}")
    target, branching = nodes.used()
    checks = [
        check_tokens(nodes.draft, p.shape[-1]),
        check_uniforms(u),
        check_rows("target probabilities", p, target, thorough=thorough),
    ]
    if q is not None:
        checks.append(check_rows("draft probabilities", q, branching, thorough=thorough))
    return tuple(checks)


def accept_sglang_target_only(
    p: Tensor,
    draft: Tensor,
    u: Tensor,
    *,
    parents: npt.ArrayLike,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    thorough: bool = True,
) -> OutcomeTensors:
    """Verify a tree as SGLang samples; see `specplan.verify.sglang.accept_sglang_target_only`.

    Parameters
    ----------
    p, draft, parents, thorough
        As in `accept_tree`.
    u : Tensor, shape (B, N + 2)
        Uniforms in [0, 1): the coin of the context and of each node, then the one that draws the last token.
    threshold_single, threshold_acc : float
        In [0, 1].

    Examples
    --------
    >>> p, coins = torch.tensor([[[0.25, 0.75]] * 4]), torch.tensor([[0.7, 0, 0, 0, 0]])
    >>> accept_sglang_target_only(p, torch.tensor([[0, 0, 0]]), coins, parents=[-1, -1, -1]).tokens.tolist()
    [[0, 0]]
    """
    single, acc = checked_thresholds(threshold_single, threshold_acc)
    nodes = _Nodes.of(parents, draft)
    checks = _tree_checks(nodes, p, None, u, columns=draft.shape[1] + 2, thorough=thorough)
    mine = nodes.at_parents(p)
    so_far = (nodes.before.double() @ mine[..., None])[..., 0] + mine
    sure = mine >= single
    coin = u.double().gather(1, nodes.row)
    accept = (mine > 0.0) & ((coin * acc < so_far) | sure)
    chance_here = torch.where(mine > 0.0, torch.where(sure, 1.0, (so_far / acc).clamp(max=1.0)), 0.0)
    chance = torch.zeros((len(draft), draft.shape[1] + 1), dtype=torch.float64, device=p.device)
    chance = chance.scatter_reduce(1, nodes.row, chance_here, "amax")
    return _outcome(nodes, accept, _FromResidual(p=p, q=None, c=None, u=u[:, -1]), chance, checks)
