"""What the options of the command line are called as arguments: errors of the library speak of these."""

import functools
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from specplan.errors import SpecplanError

P = ParamSpec("P")
R = TypeVar("R")

ARGUMENTS: Final = {
    "--context": "context_len",
    "--context-length": "max_model_len",
    "--cost": "c",
    "--draft-tp": "draft_tp",
    "--gpu": "accelerator",
    "--input": "input_len",
    "--max": "max_kappa",
    "--max-k": "max_kappa",
    "--compare": "compared",
    "--output": "output_len",
    "--num-speculative-tokens": "kappa",
    "--source": "source",
    "--tensor-parallel-size": "tp",
    "--memory": "memory_source",
}
"""Arguments that are not called as their option is."""

_OPTION: Final = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)(=| (?=[a-z0-9_.'\"\[]))?")


def in_arguments(message: str) -> str:
    """A message about options, about arguments.

    >>> in_arguments("--num-speculative-tokens 0: must be at least 1 (see --max-k)")
    'kappa=0: must be at least 1 (see max_kappa)'
    """

    def name(match: re.Match[str]) -> str:
        option = f"--{match[1]}"
        argument = ARGUMENTS.get(option, match[1].replace("-", "_"))
        valued = match.start() == 0 and match[2]
        return f"{argument}=" if valued or match[2] == "=" else f"{argument}{match[2] or ''}"

    return _OPTION.sub(name, message)


def saying_arguments(ask: Callable[P, R]) -> Callable[P, R]:
    """A question whose errors name its arguments in place of the options of the command line."""

    @functools.wraps(ask)
    def asking(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return ask(*args, **kwargs)
        except SpecplanError as error:
            error.args = (in_arguments(str(error)), *error.args[1:])
            raise

    return asking
