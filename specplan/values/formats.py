"""How a number is stored: payload bits plus the scales and zero points that come with it."""

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
    _f("float32", 32, 0, "fp32", "float", "f32"),
    _f("bfloat16", 16, 0, "bf16"),
    _f("float16", 16, 0, "fp16", "half", "f16"),
    _f("fp8", 8, 0, "float8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "fp8-tensor", "fp8-channel"),
    _f("fp8-block128", 8, 32 / 128**2, "fp8_block"),
    _f("int8", 8, 0, "w8a8", "int8-channel"),
    _f("int4-awq-g128", 4, (16 + 4) / 128, "awq"),
    _f("int4-gptq-g128", 4, (16 + 4) / 128, "gptq"),
    _f("int4-gptq-g64", 4, (16 + 4) / 64),
    _f("int4-gptq-g32", 4, (16 + 4) / 32),
    _f("bnb-nf4", 4, 8 / 64 + 32 / (64 * 256), "nf4", "bitsandbytes"),
    _f("mxfp4", 4, 8 / 32),
    _f("mxfp8", 8, 8 / 32),
    _f("nvfp4", 4, 8 / 16),
)

_BY_NAME: Final = {name: f for f in FORMATS for name in (f.name, *f.aliases)}


def lookup(name: str) -> NumberFormat:
    """Format by canonical name or alias.

    Raises
    ------
    InputError
        When no format answers to `name`.

    Examples
    --------
    >>> lookup("bf16").name
    'bfloat16'
    """
    found = _BY_NAME.get(name.strip().lower().removeprefix("torch."))
    if found is None:
        raise InputError(f"unknown number format {name!r}; one of {', '.join(f.name for f in FORMATS)}")
    return found
