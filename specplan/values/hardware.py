"""An accelerator as its datasheet and its driver describe it; calibration is kept apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specplan.values.kernels import KernelLaws


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on a card, dated, never mixed with datasheet numbers.

    Attributes
    ----------
    card : str
        The card that it was measured on; another card of the family borrows it and says so.
    date, source : str
        When and from what.
    bandwidth_fraction : float or None
        Achieved over peak memory bandwidth when weights are streamed.
    kv_bandwidth_fraction : float or None
        The same for cached keys and values.
    matmul_fraction : float or None
        Achieved over peak dense matmul rate.
    launch_s : float or None
        Time per layer that no byte or FLOP explains, with the kernels recorded in a graph, seconds.
    collective_latency_s : float or None
        Fixed time of one all-reduce by an engine's own kernel over direct links, seconds.
    ring_latency_s : float or None
        Fixed time of one all-reduce by the vendor's library among eight ranks, seconds.
    link_fraction : float or None
        Achieved over peak link bandwidth in all-reduces of a step's size.
    host_s : float or None
        Time per step outside the forward pass, seconds.
    sources : mapping of str to str
        Field -> where its number comes from, in words.
    """

    card: str
    date: str
    source: str
    bandwidth_fraction: float | None = None
    kv_bandwidth_fraction: float | None = None
    matmul_fraction: float | None = None
    launch_s: float | None = None
    collective_latency_s: float | None = None
    ring_latency_s: float | None = None
    link_fraction: float | None = None
    host_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """How far what an engine takes beside weights may lie from the prediction, from logs that nothing was fitted to.

    Attributes
    ----------
    since : tuple of int
        First engine version (major, minor, patch).
    short, spare : float
        Bytes by which a pool may be smaller and larger.
    logs : int
        Start-ups behind the two.
    """

    since: tuple[int, int, int]
    short: float
    spare: float
    logs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What an architecture family decides about engines' memory.

    Attributes
    ----------
    family : str
        Empty where nothing is known of the family: then the rules below are those of Hopper, and bounds are wide.
    packed_sparse_latents : bool
        Whether kernels of sparse latent attention read fp8 latents with scales and a 16-bit rotary part (656 bytes),
        or plain fp8 (576).
    latent_block : int
        Tokens per block of latent attention.
    largest_capture : int
        Largest batch that is captured by default.
    small_batches : bool
        Whether batch defaults are those of small cards whatever the memory (unified memory is not counted as the
        card's).
    non_torch : tuple of float or None
        Low, best and high bytes outside torch on one rank, where the family's differ from the version's.
    non_torch_of_weights : float
        What is added to them, as a share of the weights.
    remainder : tuple of Remainder
        By version, oldest first.
    lacks : tuple of str
        Rules that were taken from other families.
    source : str
    """

    family: str = ""
    packed_sparse_latents: bool = True
    latent_block: int = 16
    largest_capture: int = 512
    small_batches: bool = False
    non_torch: tuple[float, float, float] | None = None
    non_torch_of_weights: float = 0.0
    remainder: tuple[Remainder, ...] = ()
    lacks: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device.

    Attributes
    ----------
    name : str
        Catalogue name, such as ``h100-sxm``.
    vendor, family : str
        Maker; architecture, such as ``hopper``.
    memory_driver_bytes : float or None
        What the driver reports (nvidia-smi's total).
    memory_torch_bytes : float or None
        What torch reports, which vLLM multiplies by its utilisation.
    bandwidth : float
        Peak memory bandwidth, bytes/s.
    flops : mapping of str to float
        Dense matmul peak by number format (``bfloat16``, ``fp8``, ...), FLOP/s.
    link_bandwidth : float or None
        Device to device in one direction, bytes/s.
    pcie_bandwidth : float or None
        Host to device in one direction, bytes/s.
    tdp_w : float or None
        Board power, watts.
    sources : mapping of str to str
        Field of the profile (``bandwidth``, ``memory.torch``, ``flops.fp8``) -> where its number comes from.
    aliases : tuple of str
        Other names that users type.
    note : str or None
        What a reader must know before trusting the numbers (which part of a package is one device, for example).
    memory_facts : MemoryFacts
        What its family decides about engines' memory.
    calibration : Calibration or None
        Measured efficiencies of this card, or of a card of its family (`Calibration.card` says which).
    kernels : mapping of str to KernelLaws
        Engine -> laws of the kernels that it runs, of this card or of one of its family (`KernelLaws.card`).
    """

    name: str
    vendor: str
    family: str
    memory_driver_bytes: float | None
    memory_torch_bytes: float | None
    bandwidth: float
    flops: Mapping[str, float]
    link_bandwidth: float | None = None
    pcie_bandwidth: float | None = None
    tdp_w: float | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    aliases: tuple[str, ...] = ()
    note: str | None = None
    memory_facts: MemoryFacts = field(default_factory=MemoryFacts)
    calibration: Calibration | None = None
    kernels: Mapping[str, KernelLaws] = field(default_factory=lambda: MappingProxyType({}))
