"""Read hardware profiles: `hardware_profiles/*.yaml` or any file of the same form into `specplan.values.hardware`.

Every number of a profile is a mapping with a value that carries its unit and with the source that printed it::

    bandwidth: {value: 3350 GB/s, source: NVIDIA H100 Tensor Core GPU datasheet}

A bare number is refused with the fix in the message. A checkout's `hardware_profiles` folder is looked at first, so
that an editable install never reads a stale copy; an installed wheel carries the same files as package data.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from specplan import units
from specplan.errors import InputError, NotFoundError
from specplan.files.reading import is_there, read_text
from specplan.files.text import near_misses
from specplan.specs.kernels import kernel_laws
from specplan.specs.yaml_text import parse_yaml
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator, Calibration, MemoryFacts, Remainder

_SUFFIXES: Final = (".yaml", ".yml")
_EXAMPLES: Final = {
    "memory": "79.65 GiB",
    "bandwidth": "3350 GB/s",
    "compute": "989 TFLOP/s",
    "time": "4.5 us",
    "power": "700 W",
    "fraction": "0.76",
}


class _Sourced(BaseModel):
    """One number and where it comes from; `value` is None where the number is unknown and `source` says why."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: float | None
    source: str = Field(min_length=1)


def _sourced(raw: object, dimension: str) -> object:
    example = f'{{value: {_EXAMPLES[dimension]}, source: "where the number is printed"}}'
    if not isinstance(raw, Mapping):
        bare = raw if isinstance(raw, str | int | float) else type(raw).__name__
        raise ValueError(f"{bare!r} carries no source; write {example}")
    if "value" not in raw:
        raise ValueError(f"has no value; write {example}")
    if not isinstance(raw.get("source"), str) or not raw["source"].strip():
        raise ValueError(f"has no source; write {example}")
    if raw["value"] is None:
        return raw
    return {**raw, "value": _number(raw["value"], dimension)}


def _number(value: object, dimension: str) -> float:
    try:
        if dimension == "fraction":
            return _fraction(value)
        parsed = units.parse(value, dimension)
    except InputError as error:
        raise ValueError(str(error)) from None
    if parsed == 0 and dimension != "time":
        raise ValueError(f"{value!r}: a {dimension} of an accelerator must be greater than 0")
    return parsed


def _fraction(value: object) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= 1:  # NaN fails the comparison
        return float(value)
    raise ValueError(f"{value!r}: a fraction of the peak must be a number above 0 and at most 1, such as 0.76")


def _of(dimension: str) -> BeforeValidator:
    return BeforeValidator(lambda raw: _sourced(raw, dimension))


_Memory = Annotated[_Sourced, _of("memory")]
_Bandwidth = Annotated[_Sourced, _of("bandwidth")]
_Compute = Annotated[_Sourced, _of("compute")]
_Time = Annotated[_Sourced, _of("time")]
_Power = Annotated[_Sourced, _of("power")]
_Fraction = Annotated[_Sourced, _of("fraction")]


class _MemorySizes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    driver: _Memory
    torch: _Memory
    unified: bool = False

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            raise ValueError(
                "has two values, what the driver reports and what torch sees; write memory: "
                '{driver: {value: 79.65 GiB, source: "..."}, torch: {value: 79.19 GiB, source: "..."}} '
                "(where one is unknown: value: null, with the reason as source)"
            )
        return raw

    @model_validator(mode="after")
    def _one_is_known(self) -> "_MemorySizes":
        if self.driver.value is None and self.torch.value is None:
            raise ValueError("driver and torch are both null; at least one of the two must be known")
        return self


class _CalibrationFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    date: str = Field(min_length=4)
    source: str = Field(min_length=1)
    bandwidth_fraction: _Fraction | None = None
    kv_bandwidth_fraction: _Fraction | None = None
    matmul_fraction: _Fraction | None = None
    launch: _Time | None = None
    collective_latency: _Time | None = None
    ring_latency: _Time | None = None
    link_fraction: _Fraction | None = None
    host: _Time | None = None

    @model_validator(mode="before")
    @classmethod
    def _date_is_text(cls, raw: object) -> object:
        # YAML reads 2026-01-31 as a date object.
        if isinstance(raw, Mapping) and hasattr(raw.get("date"), "isoformat"):
            return {**raw, "date": raw["date"].isoformat()}
        return raw


class _ProfileFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1, max_length=100)
    vendor: str = Field(min_length=1, max_length=100)
    family: str = Field(min_length=1, max_length=100)
    aliases: tuple[str, ...] = ()
    note: str | None = None
    memory: _MemorySizes
    bandwidth: _Bandwidth
    flops: dict[str, _Compute] = Field(min_length=1)
    link: _Bandwidth | None = None
    pcie: _Bandwidth | None = None
    tdp: _Power | None = None
    calibration: _CalibrationFile | None = None

    @model_validator(mode="after")
    def _needed_are_known(self) -> "_ProfileFile":
        if self.bandwidth.value is None:
            raise ValueError("bandwidth is null; a profile without it cannot time anything")
        if all(rate.value is None for rate in self.flops.values()):
            raise ValueError("flops has no known rate; give at least one number format")
        for name in self.flops:
            try:
                lookup(name)
            except InputError as error:
                raise ValueError(f"flops: {error}") from None
        return self


class _RemainderFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    since: str
    short: str
    spare: str
    logs: int


class _FamilyFile(BaseModel):
    """`hardware_profiles/families/NAME.yaml`: what an architecture family decides about engines' memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str = Field(min_length=1)
    packed_sparse_latents: bool | None = None
    latent_block: int | None = None
    largest_capture: int | None = None
    small_batches: bool | None = None
    non_torch: dict[str, str] | None = None
    non_torch_of_weights: float | None = None
    remainder: tuple[_RemainderFile, ...] | None = None
    lacks: tuple[str, ...] | None = None


def shipped_profiles_folder() -> Path:
    """Folder of the shipped profiles: the checkout's own, else the wheel's package data."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "hardware_profiles"
    if (package.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    return package / "data" / "hardware_profiles"


def list_accelerators() -> tuple[Accelerator, ...]:
    """All shipped accelerators, by name.

    Examples
    --------
    >>> "h100-sxm" in [card.name for card in list_accelerators()]
    True
    """
    return tuple(_with_calibration(_read(path)) for path in sorted(shipped_profiles_folder().glob("*.yaml")))


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """Accelerator by catalogue name, alias or path of a YAML file.

    Parameters
    ----------
    name_or_path : str or Path
        A name that `list_accelerators` shows, one of its aliases (case, spaces and underscores do not matter), or a
        path: something that ends in ``.yaml`` or ``.yml``, or that contains a path separator.

    Raises
    ------
    NotFoundError
        When no profile or file answers to it; near misses are named.
    InputError
        When the file is not a valid profile.

    Examples
    --------
    >>> card = load_accelerator("H100 SXM")
    >>> card.name, card.bandwidth, round(card.memory_driver_bytes / 2**30, 2)
    ('h100-sxm', 3350000000000.0, 79.65)
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(_SUFFIXES) or "/" in text:
        return _with_calibration(_read(Path(text)))
    key = _key(text)
    direct = shipped_profiles_folder() / f"{key}.yaml"
    if key and is_there(direct):
        return _with_calibration(_read(direct))
    cards = _names()
    for name in (key, _bare(key)):
        if name in cards:
            return _with_calibration(_read(cards[name]))
    hint = near_misses(key, cards) or ";"
    raise NotFoundError(
        f"no accelerator is called {text!r}{hint} `specplan hardware` lists them, and a YAML path works too"
    )


def card_in(text: str) -> Accelerator | None:
    """The card that a phrase names, by the longest name or alias in it; None where it names none.

    >>> card_in("2x RTX 3090 (NVLink)").name, card_in("DGX Spark (GB10)").name, card_in("24 GB class")
    ('rtx-3090', 'gb10', None)
    """
    words = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    found = [name for name in _names() if re.search(rf"(?:^|-){re.escape(name)}(?:-|$)", words)]
    return None if not found else load_accelerator(max(found, key=len))


def _key(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


_MAKERS: Final = re.compile(
    r"^(?:nvidia|amd|intel|google|aws|tesla|geforce|instinct|radeon|quadro)-|-(?:generation|graphics|oam|hbm3e?|gpu)$"
)


def _bare(key: str) -> str:
    """A key without the words that nvidia-smi, rocm-smi and torch put around a card's name.

    >>> _bare("nvidia-geforce-rtx-3090"), _bare("amd-instinct-mi300x"), _bare("nvidia-rtx-6000-ada-generation")
    ('rtx-3090', 'mi300x', 'rtx-6000-ada')
    """
    while (shorter := _MAKERS.sub("", key)) != key:
        key = shorter
    return key


@cache
def _names() -> dict[str, Path]:
    names: dict[str, Path] = {}
    for path in sorted(shipped_profiles_folder().glob("*.yaml")):
        names[path.stem] = path
    for path in sorted(shipped_profiles_folder().glob("*.yaml")):
        for alias in _read(path).aliases:
            names.setdefault(_key(alias), path)
    return names


def _read(path: Path) -> Accelerator:
    raw = parse_yaml(read_text(path, "a hardware profile"), str(path))
    try:
        profile = _ProfileFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{path}: {_first_problem(error)}") from None
    return _accelerator(profile)


@cache
def memory_facts(family: str, *, unified: bool = False) -> MemoryFacts:
    """Memory facts of a family; those of unified memory come on top where the card shares the system's memory.

    >>> memory_facts("blackwell").packed_sparse_latents, memory_facts("unheard-of").family
    (False, '')
    """
    facts = MemoryFacts()
    for name in (family, *(("unified",) if unified else ())):
        path = shipped_profiles_folder() / "families" / f"{_key(name)}.yaml"
        if not name or not path.is_file():
            continue
        raw = parse_yaml(read_text(path, "facts of an architecture family"), str(path))
        try:
            read = _FamilyFile.model_validate(raw)
        except ValidationError as error:
            raise InputError(f"{path}: {_first_problem(error)}") from None
        known: dict[str, Any] = read.model_dump(exclude_none=True, exclude={"remainder", "non_torch"})
        if read.remainder is not None:
            known["remainder"] = tuple(
                Remainder(
                    since=_version(r.since),
                    short=units.parse(r.short, "memory"),
                    spare=units.parse(r.spare, "memory"),
                    logs=r.logs,
                )
                for r in read.remainder
            )
        if read.non_torch is not None:
            known["non_torch"] = tuple(units.parse(read.non_torch[x], "memory") for x in ("low", "best", "high"))
        facts = replace(facts, family=name, **known)
    return facts


def _version(text: str) -> tuple[int, int, int]:
    major, minor, patch = (*map(int, text.split(".")), 0, 0)[:3]
    return major, minor, patch


def _with_calibration(card: Accelerator) -> Accelerator:
    """The card with its own calibration and kernel laws, else with those of its family where one card has them.

    A card whose own calibration tells what it streams keeps to that: another card's kernels say less about it.
    """
    own = card.calibration
    folder = shipped_profiles_folder() / "kernels"
    if own is None:
        card = replace(card, calibration=_family_calibrations().get(card.family))
    if own is None or own.bandwidth_fraction is None or (folder / f"{card.name}.json").is_file():
        return replace(card, kernels=kernel_laws(folder, card.name, card.family, card.bandwidth))
    return card


@cache
def _family_calibrations() -> dict[str, Calibration]:
    found: dict[str, Calibration] = {}
    for path in sorted(shipped_profiles_folder().glob("*.yaml")):
        # Only a file with the block can hold one; the others need no parsing.
        if "\ncalibration:" in path.read_text("utf-8"):
            card = _read(path)
            if card.calibration is not None:
                found.setdefault(card.family, card.calibration)
    return found


def _first_problem(error: ValidationError) -> str:
    first, *more = error.errors(include_url=False)
    where = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            known = ", ".join(_fields_at(first["loc"]))
            message = f"unknown field {where}; known here: {known}"
        case "missing":
            message = f"field {where} is missing"
        case _:
            message = f"{where}: {first['msg'].removeprefix('Value error, ')}" if where else str(first["msg"])
            message = message.removeprefix("Value error, ")
    return message + (f" (and {len(more)} more)" if more else "")


def _fields_at(loc: tuple[int | str, ...]) -> list[str]:
    owner: type[BaseModel] = _ProfileFile
    nested: dict[str, type[BaseModel]] = {"memory": _MemorySizes, "calibration": _CalibrationFile}
    for part in loc[:-1]:
        owner = nested.get(str(part), _Sourced)
    return list(owner.model_fields)


def _accelerator(profile: _ProfileFile) -> Accelerator:
    sourced: dict[str, _Sourced | None] = {
        "memory.driver": profile.memory.driver,
        "memory.torch": profile.memory.torch,
        "bandwidth": profile.bandwidth,
        "link": profile.link,
        "pcie": profile.pcie,
        "tdp": profile.tdp,
        **{f"flops.{lookup(name).name}": rate for name, rate in profile.flops.items()},
    }
    number = {field: None if entry is None else entry.value for field, entry in sourced.items()}
    return Accelerator(
        name=profile.name,
        vendor=profile.vendor,
        family=profile.family,
        flops=MappingProxyType(
            {lookup(name).name: rate.value for name, rate in profile.flops.items() if rate.value is not None}
        ),
        sources=MappingProxyType({field: entry.source for field, entry in sourced.items() if entry is not None}),
        aliases=profile.aliases,
        note=profile.note,
        calibration=_calibration(profile.name, profile.calibration),
        memory_facts=memory_facts(profile.family, unified=profile.memory.unified),
        memory_driver_bytes=number["memory.driver"],
        memory_torch_bytes=number["memory.torch"],
        bandwidth=profile.bandwidth.value or 0.0,  # a null bandwidth was refused
        link_bandwidth=number["link"],
        pcie_bandwidth=number["pcie"],
        tdp_w=number["tdp"],
    )


def _calibration(card: str, block: _CalibrationFile | None) -> Calibration | None:
    if block is None:
        return None
    fields = {
        "bandwidth_fraction": block.bandwidth_fraction,
        "kv_bandwidth_fraction": block.kv_bandwidth_fraction,
        "matmul_fraction": block.matmul_fraction,
        "launch_s": block.launch,
        "collective_latency_s": block.collective_latency,
        "ring_latency_s": block.ring_latency,
        "link_fraction": block.link_fraction,
        "host_s": block.host,
    }
    known = {name: entry for name, entry in fields.items() if entry is not None}
    return Calibration(
        card=card,
        date=block.date,
        source=block.source,
        sources=MappingProxyType({name: entry.source for name, entry in known.items()}),
        **{name: entry.value for name, entry in known.items()},
    )


def dump_accelerator(card: Accelerator) -> str:
    """Text of a YAML file from which `load_accelerator` reads `card` back; a borrowed calibration is left out.

    Raises
    ------
    InputError
        When a number that must be sourced carries no source.

    Examples
    --------
    >>> text = dump_accelerator(load_accelerator("h100-sxm"))
    >>> text.splitlines()[0], "{value: 3350 GB/s," in text
    ('name: h100-sxm', True)
    """
    driver, visible = card.memory_driver_bytes, card.memory_torch_bytes
    document: dict[str, Any] = {"name": card.name, "vendor": card.vendor, "family": card.family}
    if card.aliases:
        document["aliases"] = list(card.aliases)
    if card.note is not None:
        document["note"] = card.note
    document["memory"] = {
        "driver": _leaf(driver, "memory", card, "memory.driver"),
        "torch": _leaf(visible, "memory", card, "memory.torch"),
    }
    if card.memory_facts.small_batches:
        document["memory"]["unified"] = True
    document["bandwidth"] = _leaf(card.bandwidth, "bandwidth", card, "bandwidth")
    document["flops"] = {f: _leaf(rate, "compute", card, f"flops.{f}") for f, rate in card.flops.items()}
    for key, value, dimension in (
        ("link", card.link_bandwidth, "bandwidth"),
        ("pcie", card.pcie_bandwidth, "bandwidth"),
        ("tdp", card.tdp_w, "power"),
    ):
        if value is not None:
            document[key] = _leaf(value, dimension, card, key)
    own = card.calibration
    if own is not None and own.card == card.name:
        block: dict[str, Any] = {"date": own.date, "source": own.source}
        for name in own.sources:
            dimension = "fraction" if name.endswith("fraction") else "time"
            block[name.removesuffix("_s")] = {
                "value": _spelled(getattr(own, name), dimension),
                "source": own.sources[name],
            }
        document["calibration"] = block
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)


def _leaf(value: float | None, dimension: str, card: Accelerator, field: str) -> dict[str, Any]:
    if field not in card.sources:
        raise InputError(f"{card.name}: {field} carries no source, so it cannot stand in a profile")
    return {"value": _spelled(value, dimension), "source": card.sources[field]}


_SPELLED: Final = {
    "memory": (2**20, "MiB"),
    "bandwidth": (1e9, "GB/s"),
    "compute": (1e12, "TFLOP/s"),
    "time": (1e-6, "us"),
    "power": (1.0, "W"),
}


def _spelled(value: float | None, dimension: str) -> str | float | None:
    if value is None or dimension == "fraction":
        return value
    factor, unit = _SPELLED[dimension]
    return f"{value / factor:.12g} {unit}"
