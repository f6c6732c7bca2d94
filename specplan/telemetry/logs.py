"""Lines of vLLM, SGLang and llama.cpp about speculation, of logs and of printed summaries, from files of any length."""

from collections.abc import Iterable

from specplan.errors import InputError
from specplan.telemetry import sglang_log, vllm_log
from specplan.telemetry.llamacpp_log import LlamaLines
from specplan.telemetry.observation import Observation
from specplan.telemetry.printed import Printed


def read_log(lines: Iterable[str], origin: str, *, width: int | None = None) -> list[Observation]:
    """What a log says of speculation: one entry per engine, and per kind of draft for llama.cpp.

    Parameters
    ----------
    lines : iterable of str
        Lines with any prefix (time, level, process).
    origin : str
        Name of the log in reports.
    width : int or None
        SGLang's num_draft_tokens, where the log does not tell it.

    Raises
    ------
    InputError
        If no line speaks of speculation.
    """
    vllm, sglang, llama = vllm_log.VllmLines(), sglang_log.SglangLines(), LlamaLines()
    printed = Printed()
    for line in lines:
        if vllm_log.LOAD_MARK in line or any(mark in line for mark in vllm_log.MARKS):
            vllm.add(line)
        elif sglang_log.MARK in line and sglang.add(line):
            pass
        elif sglang_log.ARGUMENTS in line:
            sglang.add_arguments(line)
        elif not llama.add(line):
            printed.add(line)
    out = [
        *vllm.observations(origin),
        *sglang.observations(origin, width),
        *llama.observations(origin),
        *printed.observations(origin, width),
    ]
    if not out:
        raise InputError(
            f"{origin}: no line speaks of speculation; expected 'SpecDecoding metrics:' (vLLM), "
            "'accept len:' (SGLang), 'draft acceptance' (llama.cpp), or a benchmark's summary with 'Drafts:' or "
            "'Accept length:'"
        )
    return out
