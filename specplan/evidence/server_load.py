"""Recorded loads of a real server beside the simulation of the same load with the server's own step times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specplan.errors import InputError
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting, Floats, Ints, Requests
from specplan.queueing.measured_log import log_table
from specplan.queueing.outcome import outcome
from specplan.queueing.state import STEP_COLUMNS
from specplan.queueing.stream import serve

TURNAROUND_S: Final = 5e-3
"""From the end of a request to the step that can take the next one: client, HTTP and tokeniser. Assumed."""

BOUNDS: Final[Mapping[str, float]] = {
    "mean TTFT": 0.15,
    "mean TPOT": 0.15,
    "tokens/s": 0.15,
    "p95 TTFT": 0.25,
    "p95 TPOT": 0.25,
}
"""Relative errors within which a simulated load agrees with the recorded one."""

_BATCH_TOKENS: Final = 2048
_BLOCK: Final = 128
_BLOCKS_PER_GIB: Final = 182
"""Of the recorded server: SmolLM2-135M in fp32, 46,080 bytes a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One run of a server, recorded and simulated.

    Attributes
    ----------
    name : str
    figures : mapping of str to (float, float)
        Recorded and simulated, by the names of `BOUNDS`.
    recorded_batches, simulated_batches : ndarray
        Share of steps with 0, 1, 2, ... decoding requests.
    """

    name: str
    figures: Mapping[str, tuple[float, float]]
    recorded_batches: Floats
    simulated_batches: Floats

    def error(self, figure: str) -> float:
        """Relative error of the simulation."""
        recorded, simulated = self.figures[figure]
        return simulated / recorded - 1

    @property
    def batch_distance(self) -> float:
        """Half the summed difference of the shares of batches: 0 alike, 1 disjoint."""
        return float(np.abs(self.recorded_batches - self.simulated_batches).sum() / 2)

    @property
    def agrees(self) -> bool:
        """Whether every figure lies within its bound."""
        return all(abs(self.error(name)) <= bound for name, bound in BOUNDS.items())


def agreements(document: Mapping[str, Any]) -> list[Agreement]:
    """Simulate every run of a recorded load and hold it against the record.

    Parameters
    ----------
    document : mapping
        ``server`` (max_num_seqs, max_model_len, kv_cache_gib), and ``runs``, each with ``speculative``, ``mode``,
        ``value``, ``counters_cumulative``, ``requests`` (arrival, prompt tokens, output tokens, first chunk, end,
        chunks, kind) and ``iterations`` (context requests and tokens, generation requests and tokens, milliseconds).

    Raises
    ------
    InputError
        If the document is not of this form.

    Notes
    -----
    Each request's accepted tokens are its output beyond its chunks, spread evenly over as many drafts as the server's
    counters give per accepted token, at steps drawn with a fixed seed.
    """
    try:
        return [_agreement(document["server"], run) for run in document["runs"]]
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"a recorded load needs server and runs with requests and iterations: {error!r}") from None


def _agreement(server: Mapping[str, Any], run: Mapping[str, Any]) -> Agreement:
    rows = np.array(sorted([float(x) for x in row[:6]] for row in run["requests"]))
    arrival, prompt, output, first, end, chunks = rows.T
    n = len(rows)
    closed = int(run["value"]) if run["mode"] == "closed" else 0
    came = arrival.copy()
    if closed:
        came[:closed], came[closed:] = arrival[0], np.nan
    seqs, longest = server["max_num_seqs"], server["max_model_len"]
    speculative = run["speculative"]
    kappa = 0 if speculative is None else int(speculative["k"])
    requests = Requests(
        arrival=came,
        prompt=prompt.astype(np.int64),
        output=output.astype(np.int64),
        closed=min(closed, n),
        turnaround_s=TURNAROUND_S,
    )
    rules = EngineRules(
        num_blocks=int(server["kv_cache_gib"] * _BLOCKS_PER_GIB),
        block_size=_BLOCK,
        max_num_seqs=seqs,
        max_num_batched_tokens=_BATCH_TOKENS,
        max_model_len=longest,
        prefix_caching=server["prefix_caching"],
        method="none" if not kappa else speculative["method"],
        kappa=kappa,
    )
    drafting = None
    if kappa:
        counters = run["counters_cumulative"]
        accepted = counters["vllm:spec_decode_num_accepted_tokens_total"]
        per_accepted = counters["vllm:spec_decode_num_drafts_total"] / max(accepted, 1)
        drafting = _drafting(output.astype(np.int64), chunks.astype(np.int64), kappa, per_accepted)
    times = log_table(run["iterations"], seqs=seqs, tokens=_BATCH_TOKENS, longest=longest)
    served = serve(requests, rules, times, drafting, log=True)
    found = outcome(served, warmup=0)
    many = output > 1
    ttft, tpot = first - arrival, (end - first)[many] / (output[many] - 1)
    ours = found.latencies
    decodes = served.steps[:, STEP_COLUMNS.index("decodes")]
    return Agreement(
        name=str(run["id"]),
        figures={
            "mean TTFT": (float(ttft.mean()), ours["ttft"]["mean"]),
            "mean TPOT": (float(tpot.mean()), ours["tpot"]["mean"]),
            "tokens/s": (float(output.sum() / (end.max() - arrival.min())), found.token_rate),
            "p95 TTFT": (float(np.quantile(ttft, 0.95)), ours["ttft"]["p95"]),
            "p95 TPOT": (float(np.quantile(tpot, 0.95)), ours["tpot"]["p95"]),
        },
        recorded_batches=_shares([row[2] for row in run["iterations"]], seqs),
        simulated_batches=_shares(decodes, seqs),
    )


def _shares(values: Sequence[float] | Floats, most: int) -> Floats:
    return np.bincount(np.asarray(values, np.int64), minlength=most + 1) / max(len(values), 1)


def _drafting(output: Ints, chunks: Ints, kappa: int, per_accepted: float) -> Drafting:
    rng = np.random.default_rng(0)
    drafted, accepted = [], []
    for tokens, steps in zip(output.tolist(), np.maximum(chunks - 1, 1).tolist(), strict=True):
        taken = min(max(tokens - steps - 1, 0), steps * kappa)
        drafts = min(max(round(taken * per_accepted), -(-taken // kappa)), steps)
        of_step = np.zeros((2, steps), np.int64)
        if drafts:
            of_step[0, :drafts] = kappa
            of_step[1, :drafts] = taken // drafts
            of_step[1, : taken % drafts] += 1
        of_step = of_step[:, rng.permutation(steps)]
        drafted.append(of_step[0].tolist())
        accepted.append(of_step[1].tolist())
    both = Drafting.of(drafted, accepted)
    return Drafting(drafted=both.drafted, accepted=both.accepted, paired=True)
