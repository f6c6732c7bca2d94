"""The pools that an engine reports at start-up."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specplan import units
from specplan.api.answer import Answer, question, told
from specplan.decide.blocks_request import BlocksRequest, predict_blocks
from specplan.errors import InputError
from specplan.memory.blocks import BlocksReport
from specplan.report import blocks_table
from specplan.report.console import Console
from specplan.values.hardware import Accelerator
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Blocks(Answer, BlocksReport):
    """The answer of `blocks`: the fields of `specplan.memory.blocks.BlocksReport`."""

    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return blocks_table.blocks_document(self)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan blocks``."""
        blocks_table.print_blocks(self, console)

    def headline(self) -> str:
        """Target, card and engine, and whether it starts."""
        return f"{self.asked.get('target')} on {self.asked.get('accelerator') or 'h100-sxm'}, " + (
            "starts" if self.starts else "does not start"
        )


def size_of(memory: float | str | None) -> float | None:
    """Bytes of a size: a number, or text with its unit.

    >>> size_of("2 GiB"), size_of(None)
    (2147483648.0, None)
    """
    return float(units.parse(memory, "memory")) if isinstance(memory, str) else memory


def _length_of(length: int | str | None) -> int | None:
    """A model length; -1 asks the engine for what fits."""
    return -1 if str(length).strip() == "-1" else None if length is None else units.parse_count(length)


@question
def blocks(
    target: str | Path | None = None,
    accelerator: str | Path | Accelerator | None = None,
    *,
    draft: str | Path | None = None,
    source: str | Source | None = None,
    gpu_memory: float | str | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    tp: int = 1,
    pp: int | None = None,
    expert_parallel: bool | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    mem_fraction_static: float | None = None,
    max_model_len: int | str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
    enforce_eager: bool | None = None,
    kappa: int | None = None,
    speculative_config: str | None = None,
    speculative_algorithm: str | None = None,
    speculative_draft: str | None = None,
    speculative_num_steps: int | None = None,
    speculative_eagle_topk: int | None = None,
    speculative_num_draft_tokens: int | None = None,
    weights: float | str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Blocks:
    """The KV block count that vLLM or SGLang reports at start-up, with and without a draft.

    Parameters
    ----------
    target, draft : str or Path
        Spec names, files or folders.
    accelerator : str, Path or Accelerator, optional
        The card; h100-sxm where neither it nor `gpu_memory` is given.
    source : str or Source, optional
        What drafts, in place of `draft`.
    gpu_memory, weights : float or str
        Bytes, or text such as ``"16 GiB"``.
    kappa : int
        Drafted tokens per step.
    flags : mapping, optional
        More of the engine's flags under the names that `specplan.memory.vllm` and `specplan.memory.sglang` give them.
    others
        As the options of ``specplan blocks``.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> blocks("llama3-8b", "h100-sxm", draft="llama3.2-1b", kappa=3).starts
    True
    """
    return Blocks.of(predict_blocks(request_of(locals())))


def request_of(asked: Mapping[str, Any]) -> BlocksRequest:
    """The request that arguments of `blocks` stand for; what is not among them is not given."""
    a: dict[str, Any] = {**dict.fromkeys(inspect.signature(blocks).parameters), "engine": "vllm", **asked}
    target, accelerator, source = a["target"], a["accelerator"], a["source"]
    if source is not None:
        from specplan.api.sources import one_source

        source = one_source(source)
    if target is not None and not isinstance(target, str | Path):
        raise InputError(
            f"{told(target)}: blocks reads what the checkpoint states; give its name, file or folder, not a model"
        )
    length, more = _length_of(a["max_model_len"]), dict(a["flags"] or {})
    common = {name: a[name] for name in _COMMON} | {"weights": size_of(a["weights"])}
    of_sglang = {name: a[ours] for name, ours in _SGLANG.items()} | {
        "context_length": length,
        **{name: more.pop(name) for name in ("max_total_tokens", "free_before_load") if name in more},
    }
    of_vllm = {name: a[name] for name in _VLLM} | {"max_model_len": length, **more}
    return BlocksRequest(
        target=None if target is None else str(target),
        draft=None if a["draft"] is None else str(a["draft"]),
        gpu=None if accelerator is None else str(told(accelerator)),
        gpu_memory=size_of(a["gpu_memory"]),
        engine=a["engine"],
        engine_version=a["engine_version"],
        common=common,
        vllm=of_vllm,
        sglang=of_sglang,
        speculative_config=a["speculative_config"],
        kappa=a["kappa"],
        algorithm=a["speculative_algorithm"],
        algorithm_draft=a["speculative_draft"],
        num_steps=a["speculative_num_steps"],
        eagle_topk=a["speculative_eagle_topk"],
        num_draft_tokens=a["speculative_num_draft_tokens"],
        source=source,
    )


_COMMON: Final = ("tp", "pp", "expert_parallel", "dtype", "quantization", "kv_cache_dtype")
_VLLM: Final = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size", "enforce_eager")
_SGLANG: Final = {
    "mem_fraction_static": "mem_fraction_static",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "page_size": "block_size",
    "disable_cuda_graph": "enforce_eager",
}
"""SGLang's names of what `blocks` calls as vLLM does."""
