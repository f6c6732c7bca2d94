r"""vLLM's terms around the pool: activation peak, non-torch memory, CUDA graphs, device buffers.

Weights and pages follow from shapes; these terms follow from kernels, so they are modelled: structure from what a
profile run holds at its two high points, a few constants fitted to public logs (`vllm_fits`, with data and residuals).
Every term can be overridden.

The profile run sends `max_num_batched_tokens` (T) dummy tokens through the model and samples `max_num_seqs` (S) rows:

- sampling: S rows of logits over the vocabulary V in the model's format (b bytes) and in fp32 copies, beside what the
  forward pass still holds (hidden states, expert workspaces);
- forward: T rows of the widest feed-forward (gate, up and their product), beside hidden states.
"""

from dataclasses import dataclass

from specplan.errors import InputError
from specplan.memory.vllm_fits import CPU_PROCESS, FITS, Fit
from specplan.units import GIB, MIB
from specplan.values.hardware import MemoryFacts
from specplan.values.model import DenseMLP, Experts, Layer, Model
from specplan.values.vllm_versions import version_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A modelled amount: best guess and bounds, in bytes. Equal bounds mean that nothing was modelled.

    Attributes
    ----------
    low, best, high : float
    source : str
        exact, derived, measured or assumed, with what it rests on.
    """

    low: float
    best: float
    high: float
    source: str

    @classmethod
    def of(cls, value: float, source: str) -> "Estimate":
        """An amount that is known."""
        return cls(low=value, best=value, high=value, source=source)

    def __add__(self, other: "Estimate") -> "Estimate":
        """Sum; bounds add, as if all erred to one side."""
        return Estimate(
            low=self.low + other.low, best=self.best + other.best, high=self.high + other.high, source=self.source
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """Sizes of the profile run.

    Attributes
    ----------
    max_num_batched_tokens, max_num_seqs : int
        T and S.
    tp, pp : int
    multimodal_tokens : int
        Encoder tokens that the profile run produces (images x tokens of an image).
    multimodal_values : int
        Input numbers that it sends (images x pixels x channels).
    encoder_whole, encoder_split : float
        Numbers that the encoder holds at its own peak: whole on every rank; divided among them.
    expert_parallel : bool
    largest_capture : int
        Largest batch that is captured by default: 512, on data-centre Blackwell 1024.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    tp: int = 1
    pp: int = 1
    multimodal_tokens: int = 0
    multimodal_values: int = 0
    encoder_whole: float = 0.0
    encoder_split: float = 0.0
    expert_parallel: bool = False
    largest_capture: int = 512


def fit_for(version: str) -> Fit:
    """Constants for a version.

    >>> fit_for("0.19.0").since, fit_for("0.10.2").since
    ((0, 18, 0), (0, 10, 2))
    """
    found = [fit for fit in FITS if fit.since <= version_number(version)]
    if not found:
        raise InputError(f"no memory model for vLLM {version}; give --activation-peak")
    return found[-1]


def activation_peak(model: Model, run: RunShape, version: str, stage: int = 0) -> Estimate:
    r"""Transient memory at the profile run's peak on one rank of a pipeline stage.

    .. math::
        \max\big( \underbrace{S V (b + l) + h T H b + m}_{\text{sampling, last stage}},
        \underbrace{3 T I b / tp + f T H b}_{\text{forward}} \big) + \text{experts' workspaces} + \text{multimodal}

    Parameters
    ----------
    model : Model
    run : RunShape
    version : str
        vLLM version; picks the constants l, h, m, f of `FITS`.
    stage : int
        Pipeline stage. Only the last samples; later ones also hold what they receive (two hidden states).

    Examples
    --------
    Llama-3.1-8B on vLLM 0.19 prints 1.89 GiB:

    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import Attention
    >>> layer = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="m", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,) * 32, weight_format=lookup("bf16"))
    >>> run = RunShape(max_num_batched_tokens=8192, max_num_seqs=1024)
    >>> round(activation_peak(model, run, "0.19.0").best / GIB, 2)
    1.89
    """
    fit = fit_for(version)
    b = model.weight_format.bytes
    hidden = run.max_num_batched_tokens * model.hidden_size * b
    received = 2 * hidden if run.pp > 1 else 0.0
    forward = (
        max((_widest(layer, model, run) for layer in set(model.layers)), default=0.0) + fit.forward_hidden * hidden
    )
    peak = forward
    workspaces = max((_workspaces(layer, model, run) for layer in set(model.layers)), default=0.0) * b
    if stage == run.pp - 1:
        rows = min(run.max_num_seqs, run.max_num_batched_tokens)
        copies = rows * model.vocab_size * fit.logits_copies_bytes
        if fit.logits_chunk_bytes is not None:
            copies = min(copies, fit.logits_chunk_bytes)
        logits = rows * model.vocab_size * b + copies
        peak = max(peak, logits + fit.held_hidden * hidden + fit.held_bytes)
    multimodal = (run.multimodal_tokens * model.hidden_size + run.multimodal_values) * b
    best = peak + workspaces + received + multimodal
    if stage == 0:
        # The encoder runs first; its outputs wait while the decoder runs.
        encoder = (run.encoder_whole + run.encoder_split / run.tp + run.multimodal_values) * b
        best = max(best, encoder + run.multimodal_tokens * model.hidden_size * b)
    low, high = fit.peak_bounds
    return Estimate(low=low * best, best=best, high=high * best, source=_source("activation peak", fit))


def _widest(layer: Layer, model: Model, run: RunShape) -> float:
    """Bytes of a dense feed-forward's gate, up and product for all tokens; beside 8-bit weights also an 8-bit copy."""
    match layer.feed_forward:
        case DenseMLP() as mlp:
            width, parts = mlp.width, 3 if mlp.gated else 2
        case Experts() as experts:
            width, parts = experts.shared_width, 3
        case None:
            return 0.0
    quantized = model.quantization is not None and model.quantization.payload_bits == 8
    per_number = parts * model.weight_format.bytes + (1 if quantized else 0)
    return run.max_num_batched_tokens * width / run.tp * per_number


def _workspaces(layer: Layer, model: Model, run: RunShape) -> float:
    """Numbers of the two workspaces that fused experts keep: rows x the wider of both ends of each matmul.

    MXFP4 kernels keep none (gpt-oss prints the sampling peak alone).
    """
    if not isinstance(layer.feed_forward, Experts):
        return 0.0
    experts = layer.feed_forward
    if model.quantization is not None and model.quantization.name == "mxfp4":
        return 0.0
    rows = run.max_num_batched_tokens * experts.per_token
    width = experts.width if run.expert_parallel else experts.width / run.tp
    if run.expert_parallel:
        rows = -(-rows // run.tp)
    gate_up = (2 if experts.gated else 1) * width
    return rows * (max(gate_up, model.hidden_size) + max(width, model.hidden_size))


def non_torch(
    version: str,
    tp: int,
    pp: int,
    layers: int,
    *,
    custom_all_reduce: bool,
    facts: MemoryFacts | None = None,
    weights: float = 0.0,
) -> Estimate:
    """Memory outside torch that loading and profiling add on one rank: communication buffers, library workspaces.

    Parameters
    ----------
    version : str
    tp, pp : int
    layers : int
        Layers of the target.
    custom_all_reduce : bool
        Whether ranks reach each other's memory (NVLink); without it vLLM allocates no all-reduce buffers.
    facts : MemoryFacts, optional
        Of the card's family, which replace the version's where they say something.
    weights : float
        Bytes that were loaded.

    Examples
    --------
    >>> [round(non_torch("0.19.0", tp, 1, 32, custom_all_reduce=True).best / GIB, 2) for tp in (1, 2, 4)]
    [0.25, 2.07, 2.13]
    """
    fit = fit_for(version)
    if facts is not None and facts.non_torch is not None:
        low, best, high = facts.non_torch
        share = facts.non_torch_of_weights * weights
        return Estimate(low=low, best=best + share, high=high + 2 * share, source=f"modelled: {facts.source}")
    if tp == 1:
        low, best, high = fit.non_torch_one if pp == 1 else fit.non_torch_pipeline
    elif custom_all_reduce:
        low, best, high = fit.non_torch_custom
        more = fit.non_torch_layer * layers + fit.non_torch_doubling * ((tp - 1).bit_length() - 1)
        low, best, high = low + 0.5 * more, best + more, high + 1.5 * more
    else:
        low, best, high = fit.non_torch_plain
    return Estimate(low=low * GIB, best=best * GIB, high=high * GIB, source=_source("non-torch memory", fit))


def process_memory() -> Estimate:
    """Memory of a CPU worker beside its weights, which counts as used."""
    low, best, high = (x * GIB for x in CPU_PROCESS)
    return Estimate(low=low, best=best, high=high, source="modelled: four starts of vLLM 0.32 on a CPU, 2026-11-30")


def _source(what: str, fit: Fit) -> str:
    since = ".".join(map(str, fit.since))
    return f"modelled: {what}, constants of vLLM {since} on, fitted to logs on {fit.date} (specplan validate startup)"


def capture_sizes(max_num_seqs: int, query_len: int = 1, ceiling: int = 512) -> tuple[int, ...]:
    """Batch sizes that vLLM captures by default: 1, 2, 4, 8 to 248 by 8, then by 16, up to twice the decode batch.

    >>> len(capture_sizes(1024)), capture_sizes(2), len(capture_sizes(1024, ceiling=1024))
    (51, (1, 2, 4), 83)
    """
    most = min(max_num_seqs * query_len * 2, ceiling)
    grid = (1, 2, 4, *range(8, 256, 8), *range(256, ceiling + 1, 16))
    return tuple(size for size in grid if size <= most)


def cuda_graphs(model: Model, run: RunShape, version: str, query_len: int = 1) -> Estimate:
    """CUDA-graph memory as vLLM estimates it on one rank: a first capture, then an increment per size and layer."""
    sizes = len(capture_sizes(run.max_num_seqs, query_len, run.largest_capture))
    layers = -(-len(model.layers) // run.pp)
    fit = fit_for(version)
    routed = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    per_layer = (fit.graph_layer_mib + fit.graph_width_mib * model.hidden_size) * (fit.graph_experts if routed else 1.0)
    first = fit.graph_first_mib * min(1.0, sizes / 51)
    whole = (first + max(sizes - 1, 0) * layers * per_layer) * MIB
    low, best, high = fit.graph_bounds
    return Estimate(low=low * whole, best=best * whole, high=high * whole, source=_source("CUDA graphs", fit))
