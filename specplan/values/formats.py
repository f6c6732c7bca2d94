"""How a number is stored: payload bits plus the scales and zero points that come with it."""

import re
from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """A storage format for weights or cached keys and values.

    Attributes
    ----------
    name : str
        Canonical name, such as ``bfloat16`` or ``int4-awq-g128``.
    payload_bits : float
        Bits of the stored number itself.
    overhead_bits : float
        Bits per number of scales and zero points (0 for plain formats).
    aliases : tuple of str
        Other spellings that engines and checkpoints use.
    """

    name: str
    payload_bits: float
    overhead_bits: float = 0.0
    aliases: tuple[str, ...] = ()

    @property
    def bits(self) -> float:
        """Bits per stored number, scales included.

        >>> lookup("int4-gptq-g128").bits
        4.15625
        """
        return self.payload_bits + self.overhead_bits

    @property
    def bytes(self) -> float:
        """Bytes per stored number, scales included.

        >>> lookup("bf16").bytes
        2.0
        """
        return self.bits / 8


def _f(name: str, payload: float, overhead: float = 0.0, *aliases: str) -> NumberFormat:
    return NumberFormat(name=name, payload_bits=payload, overhead_bits=overhead, aliases=aliases)


# Scales follow vLLM 0.32's storage (fact sheet, section 8): AWQ and GPTQ hold an fp16 scale and a 4-bit zero point per
# group; NVFP4 an e4m3 scale per 16; MXFP4 and MXFP8 an e8m0 scale per 32; fp8 blocks an fp32 scale per 128 x 128.
FORMATS: Final[tuple[NumberFormat, ...]] = (
    _f("float64", 64, 0, "fp64", "double", "f64"),
    _f("float32", 32, 0, "fp32", "float", "f32"),
    _f("bfloat16", 16, 0, "bf16"),
    _f("float16", 16, 0, "fp16", "half", "f16"),
    _f("fp8", 8, 0, "float8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "fp8-tensor"),
    _f("fp8-block128", 8, 32 / 128**2, "fp8_block", "fp8-block"),
    _f("int8", 8, 0, "w8a8"),
    _f("int4-awq-g128", 4, (16 + 4) / 128, "awq"),
    _f("int4-gptq-g128", 4, (16 + 4) / 128, "gptq"),
    _f("int4-gptq-g64", 4, (16 + 4) / 64),
    _f("int4-gptq-g32", 4, (16 + 4) / 32),
    _f("bnb-nf4", 4, 8 / 64 + 32 / (64 * 256), "nf4", "bitsandbytes"),
    _f("bnb-nf4-single", 4, 32 / 64),
    _f("mxfp4", 4, 8 / 32),
    _f("mxfp6", 6, 8 / 32),
    _f("mxfp8", 8, 8 / 32),
    _f("nvfp4", 4, 8 / 16),
    _f("bitnet", 2, 0, "ternary"),
)

# GGUF stores blocks of weights with their scales: weights per block, bytes per block (gguf 0.19, GGML_QUANT_SIZES).
_GGUF_BLOCKS: Final[dict[str, tuple[int, int]]] = {
    "q1_0": (128, 18),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q8_1": (32, 40),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q8_k": (256, 292),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq3_xxs": (256, 98),
    "iq1_s": (256, 50),
    "iq4_nl": (32, 18),
    "iq3_s": (256, 110),
    "iq2_s": (256, 82),
    "iq4_xs": (256, 136),
    "iq1_m": (256, 56),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
}
_PAYLOAD_BITS: Final = {"tq1_0": 1.6, "tq2_0": 2.0, "iq4_nl": 4.0}


def _gguf_format(name: str, block: int, size: int) -> NumberFormat:
    digits = "".join(c for c in name.split("_")[0] if c.isdigit())
    payload = _PAYLOAD_BITS.get(name, float(digits))
    return _f(f"gguf-{name}", payload, size * 8 / block - payload, name)


GGUF_FORMATS: Final = tuple(_gguf_format(name, *sizes) for name, sizes in _GGUF_BLOCKS.items())
"""Block formats of GGUF files; ``q4_k`` and ``gguf-q4_k`` name the same."""

_BY_NAME: Final = {name: f for f in (*FORMATS, *GGUF_FORMATS) for name in (f.name, *f.aliases)}

# Families with a free parameter: bits and group size, or the sides of a block.
_GROUPED: Final = re.compile(r"int([2-8])-(awq|gptq|sym|affine)(?:-g(\d{1,5}))?")
_MIXED: Final = re.compile(r"mixed-(\d{1,3}(?:\.\d{1,20})?)")
_ROWS: Final = re.compile(r"(fp8|int[2-8])-channel(?:-k(\d{1,7}))?")
_ADJUSTED: Final = re.compile(r"([\w-]{1,40})@(\d{1,3}(?:\.\d{1,20})?)")
_BLOCKS: Final = re.compile(r"fp8-block(\d{1,5})x(\d{1,5})")


def grouped(bits: int, kind: str, group_size: int) -> NumberFormat:
    """Integers with an fp16 scale per group, and a zero point.

    ``awq`` and ``gptq`` keep a zero point of the same bits, ``affine`` (MLX, torchao, HQQ, quanto) one of 16, ``sym``
    none.

    `group_size` -1 or 0: one scale per row, which is not counted per weight.

    >>> grouped(4, "sym", 32).bits
    4.5
    """
    if group_size <= 0:
        return _f(f"int{bits}-{kind}", bits)
    overhead = (16 + {"sym": 0, "affine": 16}.get(kind, bits)) / group_size
    return _f(f"int{bits}-{kind}-g{group_size}", bits, overhead)


def channelwise(base: str, columns: int = 0) -> NumberFormat:
    """`base` (``fp8``, ``int8``) with one 16-bit scale per row of `columns` weights; 0 where that is not known yet.

    >>> channelwise("fp8", 4096).name, channelwise("fp8", 4096).bits
    ('fp8-channel-k4096', 8.00390625)
    """
    bits = 8 if base == "fp8" else int(base.removeprefix("int"))
    return _f(f"{base}-channel" + (f"-k{columns}" if columns else ""), bits, 16 / columns if columns else 0)


def per_row(fmt: NumberFormat, columns: int) -> NumberFormat:
    """`fmt` for a matrix of so many columns, if it has a scale per row; without scales where columns are 0.

    >>> per_row(channelwise("fp8"), 2048).name, per_row(channelwise("fp8"), 0).name, per_row(lookup("bf16"), 9).name
    ('fp8-channel-k2048', 'fp8', 'bfloat16')
    """
    match = _ROWS.fullmatch(fmt.name)
    if match is None or match[2]:
        return fmt
    if columns:
        return channelwise(match[1], columns)
    return _BY_NAME.get(match[1]) or _f(f"{match[1]}-sym", fmt.payload_bits)


def fp8_blocks(rows: int, columns: int) -> NumberFormat:
    """FP8 with an fp32 scale per block of weights.

    >>> fp8_blocks(128, 128).name
    'fp8-block128'
    """
    return lookup("fp8-block128") if rows == columns == 128 else lookup(f"fp8-block{rows}x{columns}")


def mixed(bits: float) -> NumberFormat:
    """Average of the formats in which one component's weights are stored.

    >>> mixed(4.85).name, mixed(4.85).bits
    ('mixed-4.85', 4.85)
    """
    return _f(f"mixed-{bits!r}", bits)


def adjusted(base: NumberFormat, bits: float) -> NumberFormat:
    """`base` with another overhead: `bits` per number in all, at least its payload.

    >>> adjusted(lookup("fp8"), 8.25).name, adjusted(lookup("fp8"), 8.25).overhead_bits
    ('fp8@8.25', 0.25)
    """
    return _f(f"{base.name.partition('@')[0]}@{bits!r}", base.payload_bits, bits - base.payload_bits)


def lookup(name: str) -> NumberFormat:
    """Format by canonical name or alias; families take their parameters in the name.

    Raises
    ------
    InputError
        When no format answers to `name`.

    Examples
    --------
    >>> lookup("bf16").name
    'bfloat16'
    >>> lookup("int4-awq-g64").bits, lookup("fp8-block64x128").overhead_bits, lookup("q4_k").bits
    (4.3125, 0.00390625, 4.5)
    """
    wanted = name.strip().lower().removeprefix("torch.")
    found = _BY_NAME.get(wanted)
    if found is not None:
        return found
    if match := _GROUPED.fullmatch(wanted):
        return grouped(int(match[1]), match[2], int(match[3] or -1))
    if match := _ROWS.fullmatch(wanted):
        return channelwise(match[1], int(match[2] or 0))
    if match := _MIXED.fullmatch(wanted):
        return mixed(float(match[1]))
    if match := _ADJUSTED.fullmatch(wanted):
        base, bits = lookup(match[1]), float(match[2])
        if bits < base.payload_bits:
            raise InputError(f"number format {name[:40]!r}: fewer bits than the {base.payload_bits:g} of its numbers")
        return adjusted(base, bits)
    if (match := _BLOCKS.fullmatch(wanted)) and int(match[1]) and int(match[2]):
        return _f(wanted, 8, 32 / (int(match[1]) * int(match[2])))
    known = ", ".join(f.name for f in FORMATS)
    raise InputError(f"unknown number format {name[:40]!r}; one of {known}, int4-awq-g64 and the like, or a GGUF type")
