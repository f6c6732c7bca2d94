"""What `compare` and `schedule` read alike: draft sources and measured tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specplan.decide.step_source import StepSource
from specplan.decide.step_source_text import parse_step_source
from specplan.errors import InputError
from specplan.specs.catalog import load_model
from specplan.timing.measured_steps import MeasuredTable, load_measured_table


def load_sources(texts: Sequence[str], kappa: int | None = None) -> list[StepSource]:
    """Parse sources, load draft models, and give `kappa` to those that fix no draft length."""
    if kappa is not None and kappa < 1:
        raise InputError(f"--num-speculative-tokens {kappa}: must be at least 1")
    found = []
    for text in texts:
        # A draft length on the command line is part of the source, so that what is given for one length is checked.
        source = parse_step_source(text)
        if kappa is not None and source.kappa is None and source.kind != "none":
            source = parse_step_source(text + ("," if "=" in text.rpartition(":")[2] else ":") + f"k={kappa}")
        if source.kind == "model":
            source = replace(source, model=load_model(source.name))
        found.append(source)
    return found


def load_tables(named: Sequence[str] | None) -> Mapping[str, MeasuredTable]:
    """Measured tables given as NAME=FILE."""
    found = {}
    for text in named or ():
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--measured {text!r}: expected NAME=FILE, with the name of the target or of a source")
        found[name] = load_measured_table(Path(path))
    return found
