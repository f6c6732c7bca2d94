"""A draft source on its machine, ready to serve: its pool, its rules, its step times and its acceptance."""

from collections.abc import Sequence
from dataclasses import dataclass

from specplan.decide.step_setting import Setting, best_kappa, pool_of
from specplan.decide.step_source import loads, on_engine
from specplan.errors import InfeasibleError, InputError, UnsupportedError
from specplan.memory.pool import Pool
from specplan.memory.sglang import SPECULATIVE_RUNNING, SglangFlags, chunk_size, running_requests
from specplan.queueing.acceptance import drafting_of, recorded_drafting
from specplan.queueing.arrivals import Load
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting
from specplan.queueing.outcome import Outcome, Target, outcome
from specplan.queueing.replicas import NO_ROUTING, Routing, serve_replicas
from specplan.queueing.step_table import step_table
from specplan.queueing.stream import Progress, Served, serve
from specplan.queueing.time_loop import Times
from specplan.records.step import StepRecord
from specplan.values.draft_methods import draft_method
from specplan.values.source import MATCHERS, Source
from specplan.values.vllm_versions import DEFAULT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine is started with, beside the pool; None: as it starts of itself.

    Attributes
    ----------
    max_model_len : int
    max_num_seqs : int or None
        SGLang's ``max_running_requests``.
    max_num_batched_tokens : int or None
        SGLang's ``chunked_prefill_size``.
    block_size : int or None
        SGLang's page.
    prefix_caching : bool
    long_prefill_token_threshold : int
    num_blocks : int or None
        In place of the predicted pool.
    """

    max_model_len: int = 8192
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSource:
    """One source that can be served.

    Attributes
    ----------
    source : Source
        As the engine runs it.
    kappa : int
    rules : EngineRules
    times : Times
    pool : Pool
    records : sequence of StepRecord
        Recorded steps to replay in place of drawn acceptance.
    """

    source: Source
    kappa: int
    rules: EngineRules
    times: Times
    pool: Pool
    records: Sequence[StepRecord] = ()
    routing: Routing = NO_ROUTING

    def drafting(self, requests: int, seed: int) -> Drafting | None:
        """Acceptance of a load's requests."""
        if not self.kappa:
            return None
        if self.records:
            return recorded_drafting(self.records, requests)[0]
        return drafting_of(self.source, self.kappa, requests, seed)

    def run(self, load: Load, seed: int, *, log: bool = False, progress: Progress | None = None) -> Served:
        """Serve the load of one seed."""
        requests = load.draw(seed, self.rules.max_model_len)
        drafting = self.drafting(len(requests), seed)
        if self.routing.replicas > 1:
            return serve_replicas(requests, self.rules, self.times, drafting, routing=self.routing, progress=progress)
        return serve(requests, self.rules, self.times, drafting, log=log, progress=progress)

    def outcomes(self, load: Load, seeds: Sequence[int], targets: Sequence[Target], warmup: float) -> list[Outcome]:
        """Sums of one run per seed."""
        return [outcome(self.run(load, seed), targets, warmup=warmup) for seed in seeds]


def placed(
    setting: Setting,
    source: Source,
    limits: Limits,
    *,
    context: int,
    batch: int = 16,
    times: Times | None = None,
    records: Sequence[StepRecord] = (),
) -> ServedSource:
    """Place a source on its machine.

    Parameters
    ----------
    setting : Setting
    source : Source
    limits : Limits
    context : int
        Typical tokens of a request, for the best draft length where none is fixed.
    batch : int
        Requests per step, for the same.
    times : Times, optional
        Measured step times in place of the modelled ones.
    records : sequence of StepRecord
        Recorded steps.

    Raises
    ------
    InputError
        Where the model does not fit the card, or the engine refuses the source.
    """
    engine = setting.on.engine
    is_sglang = engine.family == "sglang"
    if not is_sglang and not engine.name.startswith("vllm"):
        raise UnsupportedError(f"--engine {engine.name}: the schedulers of vllm and sglang are simulated")
    source = on_engine(source, setting.target, engine.name)
    of = loads(setting.target, source, setting.on.tp, setting.kv_format)
    kappa = int(best_kappa(setting, source, of, batch, context)[0]) if source.kind != "none" else 0
    if records:
        kappa = recorded_drafting(records, 1)[1]
    if source.nodes is not None:
        raise UnsupportedError(f"source {source.title}: trees of drafts are not simulated; give a chain")
    pool = pool_of(setting, source, limits.max_model_len, kappa)
    block = limits.block_size or (1 if is_sglang else 16)
    blocks = limits.num_blocks or pool.tokens // block
    if blocks < 2:
        raise InfeasibleError(
            f"{setting.target.name} on {setting.on.tp} x {setting.on.accelerator.name}: {pool.binding}"
        )
    if is_sglang:
        asked = limits.max_num_seqs or (SPECULATIVE_RUNNING if kappa and source.kind != "model" else None)
        seqs = running_requests(SglangFlags(max_running_requests=asked), None, blocks * block, limits.max_model_len)
        tokens = limits.max_num_batched_tokens or chunk_size(setting.on.accelerator, setting.on.tp)
    else:
        seqs, tokens = limits.max_num_seqs or 1024, limits.max_num_batched_tokens or 8192
    rules = EngineRules(
        num_blocks=blocks,
        block_size=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=limits.max_model_len,
        prefix_caching=limits.prefix_caching,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        method=_method(source) if kappa else "none",
        kappa=kappa,
        version=setting.engine_version if setting.engine_version and not is_sglang else DEFAULT_VERSION,
        engine="sglang" if is_sglang else "vllm",
    )
    table = times
    if table is None:
        most = max(tokens, seqs * (1 + kappa))
        table = step_table(setting, source, of, kappa, seqs=seqs, tokens=most, longest=limits.max_model_len)
    return ServedSource(source=source, kappa=kappa, rules=rules, times=table, pool=pool, records=records)


def _method(source: Source) -> str:
    """VLLM's name of the way a source drafts; one of which only the cost is known owns no slots."""
    if source.kind in MATCHERS or source.is_model:
        return draft_method(source.kind).vllm or "ngram"
    return "ngram"


def check_seeds(seeds: int) -> range:
    """Seeds 0, 1, ... of a number of runs."""
    if not 1 <= seeds <= 1000:
        raise InputError(f"--seeds {seeds}: expected 1 to 1000")
    return range(seeds)
