"""Limits of an engine that decide which requests share a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError
from specplan.queueing.sglang_loop import CLIP
from specplan.queueing.state import BLK, Rules
from specplan.values.draft_methods import METHODS, named
from specplan.values.vllm_versions import DEFAULT_VERSION, vllm_rules

QUERY_SLOTS: Final[Mapping[str, tuple[int, int]]] = {
    "draft_model": (0, 1),
    "peagle": (1, -1),
    "dspark": (1, -1),
    "pard": (1, 0),
    "dflash": (1, 0),
}
"""Query slots of vLLM 0.32's drafters that each request takes from a step's input budget: so many per drafted token,
and so many beside. Other methods take none, and from 0.33 on DFlash and DSpark neither."""

_LOOKAHEAD: Final[Mapping[str, tuple[int, int]]] = {
    **{m.vllm: m.lookahead for m in METHODS.values() if m.vllm is not None},
    **dict.fromkeys(("peagle", "pard"), (1, 0)),  # drafts of one pass that vLLM starts as eagle and draft_model
    "none": (0, 0),
}

DROPS_LAST_HIT: Final = ("eagle", "eagle3", "mtp")
"""Methods that compute the last block of a prefix-cache hit again, for its hidden states; up to vLLM 0.32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """Limits of one engine process, as its start-up fixes them.

    Attributes
    ----------
    num_blocks : int
        Blocks of the cache as the engine reports them; one of them is never handed out.
    block_size : int
        Tokens per block.
    max_num_seqs : int
        Requests that run at a time.
    max_num_batched_tokens : int
        Tokens of a step.
    max_model_len : int
        Tokens of a request, prompt and output.
    prefix_caching : bool
    long_prefill_token_threshold : int
        Most prompt tokens of one request in a step while others run or wait; 0: no such limit.
    method : str
        vLLM's name of the way to draft, or ``none``.
    kappa : int
        Most drafted tokens per request and step; 0 without speculation.
    version : str
        Of vLLM, 0.32 or later.
    engine : str
        Whose scheduler runs: ``vllm`` or ``sglang``, for which ``block_size`` is the page and
        ``max_num_batched_tokens`` the size of a prompt's chunk.

    Raises
    ------
    InputError
        For a limit below 1, an unknown method, or a step too small for one drafted request.

    Examples
    --------
    >>> EngineRules(num_blocks=101, method="draft_model", kappa=3).lookahead
    3
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    method: str = "none"
    kappa: int = 0
    version: str = DEFAULT_VERSION
    engine: str = "vllm"

    def __post_init__(self) -> None:
        """Refuse what the engine refuses."""
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if not 1 <= getattr(self, name) <= 2**31:
                raise InputError(f"{name} {getattr(self, name)}: expected a whole number of at least 1")
        if self.num_blocks < 2:
            raise InputError(f"{self.num_blocks} blocks: an engine needs at least 2, one of which it never hands out")
        if self.method not in _LOOKAHEAD:
            raise InputError(f"draft method {self.method!r}: one of {', '.join(_LOOKAHEAD)}")
        if not 0 <= self.kappa <= 255 or (self.method == "none") != (self.kappa == 0):
            raise InputError(f"draft method {self.method} with {self.kappa} drafted tokens: give both, or neither")
        if self.engine not in ("vllm", "sglang"):
            raise InputError(f"--engine {self.engine}: the schedulers of vllm and sglang are simulated")
        if self.max_num_batched_tokens < 1 + self.kappa + self.draft_slots:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} cannot hold one request with {self.kappa} drafts"
            )

    @property
    def draft_slots(self) -> int:
        """Query slots of the drafter that each scheduled request takes from the step's input budget."""
        if self.engine == "sglang":
            return 0
        if self.method in named(masked=True) and not vllm_rules(self.version).block_draft_slots:
            return 0
        per_token, constant = QUERY_SLOTS.get(self.method, (0, 0))
        return per_token * self.kappa + constant if self.kappa else 0

    @property
    def lookahead(self) -> int:
        """Slots behind the step's tokens that a request's blocks must hold."""
        per_token, constant = _LOOKAHEAD[self.method]
        return per_token * self.kappa + constant if self.kappa and self.engine == "vllm" else 0

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.num_blocks - (self.engine == "vllm")

    def refuse(self, prompt: int, output: int, name: str) -> None:
        """Raise for a request that the engine would refuse, or that could never run to its end.

        Raises
        ------
        InputError
            Naming the request and the limit.
        """
        if prompt < 1 or output < 1:
            raise InputError(f"{name}: {prompt} prompt and {output} output tokens; each must be at least 1")
        if prompt + output > self.max_model_len:
            raise InputError(
                f"{name}: {prompt} prompt and {output} output tokens exceed the model's length of "
                f"{self.max_model_len}; the engine refuses it: leave it out, or raise max_model_len"
            )
        most = min(prompt + output - 1 + self.kappa + self.lookahead, self.max_model_len)
        blocks = -(-most // self.block_size)
        if blocks > self.usable_blocks:
            raise InputError(
                f"{name}: {prompt} prompt and {output} output tokens need {blocks} blocks of {self.block_size}, the "
                f"pool has {self.usable_blocks}: it can never fit"
            )
        if self.engine == "sglang" and prompt + min(output, CLIP) >= self.usable_blocks * self.block_size:
            raise InputError(
                f"{name}: {prompt} prompt and {output} output tokens are not admitted to a pool of "
                f"{self.usable_blocks * self.block_size} tokens: it can never fit"
            )

    def loop_rules(self, *, requests: int, longest: int, paired: bool, closed: int, ids_unit: int, log: bool) -> Rules:
        """The same limits as the loops read them.

        Parameters
        ----------
        requests, longest : int
            Requests of the load, and tokens of its longest one.
        paired : bool
            Accepted tokens are listed beside the draft lengths that they belong to.
        closed : int
            Requests in the system under a closed load; 0 for an open one.
        ids_unit : int
            Blocks per shared content id.
        log : bool
            Keep every step and event.
        """
        blocks = self.usable_blocks
        size = 4
        while size < 4 * blocks:
            size *= 2
        longest = min(longest + 2 * self.kappa + 2, self.max_model_len)
        return Rules(
            sglang=int(self.engine == "sglang"),
            max_seqs=min(self.max_num_seqs, requests),
            max_tokens=self.max_num_batched_tokens,
            max_len=self.max_model_len,
            threshold=self.long_prefill_token_threshold,
            block=self.block_size,
            blocks=blocks,
            lookahead=self.lookahead,
            draft_slots=self.draft_slots,
            kappa=self.kappa,
            prefix=int(self.prefix_caching),
            drop_hit=int(self.method in DROPS_LAST_HIT and vllm_rules(self.version).drops_last_hit),
            paired=int(paired),
            closed=closed,
            log=int(log),
            ids_unit=ids_unit,
            requests=requests,
            plain_at=BLK * blocks,
            table_at=(BLK + 1) * blocks,
            table_size=size,
            owned_at=(BLK + 1) * blocks + 2 * size,
            row_blocks=-(-longest // self.block_size) + 1,
        )
