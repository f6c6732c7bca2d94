"""Step times that a user or ``specplan calibrate`` measured, smoothed by the additive law."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.files.documents import parse_json
from specplan.files.reading import read_text
from specplan.timing.llama_bench import llama_bench_rows

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """Measured times of one model's passes, smoothed: coefficients of 1, positions, requests and cached tokens.

    Attributes
    ----------
    fixed_s, per_token_s, per_request_s, per_cached_token_s : float
        None below 0, so that time rises with every input.
    worst_residual : float
        Largest relative miss of the smoothing on its own rows; NaN where they are no more than its coefficients, so
        that nothing is left to miss.
    source : str
        File, how many rows, and over which batches and widths.
    most : tuple of float
        Largest batch, width and context of its rows; what lies beyond is carried on by the law, not measured.
    drafted : MeasuredTable or None
        Another table for steps of more than one position per request, where whole drafted steps were measured: what
        drafts is inside them.
    """

    fixed_s: float
    per_token_s: float
    per_request_s: float
    per_cached_token_s: float
    worst_residual: float
    source: str
    most: tuple[float, float, float]
    drafted: "MeasuredTable | None" = None

    def time_s(self, batch: npt.ArrayLike, width: npt.ArrayLike, context_len: npt.ArrayLike) -> FloatArray:
        """Time of a pass, seconds."""
        b, w, t = (np.asarray(x, np.float64) for x in (batch, width, context_len))
        plain = self.fixed_s + self.per_token_s * b * w + self.per_request_s * b + self.per_cached_token_s * b * t
        return np.asarray(plain if self.drafted is None else np.where(w > 1, self.drafted.time_s(b, w, t), plain))


def measured_table(rows: Sequence[tuple[float, float, float, float]], source: str) -> MeasuredTable:
    """Smooth measured rows (batch, width, context, seconds) by the additive law, each row weighing its relative miss.

    Raises
    ------
    InputError
        Without rows, or with a time that is not above 0.

    Examples
    --------
    >>> table = measured_table([(1, 1, 0, 0.010), (1, 3, 0, 0.012), (8, 1, 1000, 0.025)], "example")
    >>> round(float(table.time_s(1, 2, 0)), 4)
    0.011
    """
    if not rows:
        raise InputError(f"{source}: a table of step times needs at least one row of batch, width, context and seconds")
    data = np.asarray(rows, np.float64)
    if data.ndim != 2 or data.shape[1] != 4 or not np.all(np.isfinite(data)) or np.any(data[:, 3] <= 0):
        raise InputError(f"{source}: rows are batch, width, context and a time above 0 in seconds")
    b, w, t, seconds = data.T
    features = np.stack([np.ones_like(b), b * w, b, b * t], axis=1) / seconds[:, None]
    scale = np.maximum(features.max(axis=0), 1e-300)
    coefficients = _least_squares(features / scale) / scale
    missed = float(np.abs(features @ coefficients - 1).max())
    distinct = len(np.unique(data[:, :3], axis=0))
    ranges = f"batch {_range(b)}, width {_range(w)}"
    return MeasuredTable(
        fixed_s=float(coefficients[0]),
        per_token_s=float(coefficients[1]),
        per_request_s=float(coefficients[2]),
        per_cached_token_s=float(coefficients[3]),
        worst_residual=missed if distinct > np.count_nonzero(coefficients) else np.nan,
        source=f"{source} ({len(data)} rows, {ranges})",
        most=(float(b.max()), float(w.max()), float(t.max())),
    )


def _range(values: FloatArray) -> str:
    low, high = values.min(), values.max()
    return f"{low:g} to {high:g}" if low < high else f"{low:g}"


def _least_squares(features: FloatArray) -> FloatArray:
    """Coefficients, none below 0, whose sums over the features come closest to 1 in all rows.

    The best of the least squares over every subset of the columns that leave none below 0: exact for a few columns.
    """
    count, ones = features.shape[1], np.ones(len(features))
    best, least = np.zeros(count), float(len(features))
    for size in range(1, count + 1):
        for columns in itertools.combinations(range(count), size):
            found = np.linalg.lstsq(features[:, columns], ones)[0]
            missed = float(np.sum((features[:, columns] @ found - 1) ** 2))
            # Fewer columns first: more must miss less by more than rounding.
            if np.all(found >= 0) and missed < least - 1e-12:
                best, least = np.zeros(count), missed
                best[list(columns)] = found
    return best


def whole_steps_table(rows: Sequence[tuple[float, float, float, float]], source: str) -> MeasuredTable:
    """Smooth rows of a server's whole steps: plain ones (width 1) and drafted ones apart, as `measured_table` does.

    Where only one kind was measured, it stands for both.

    Examples
    --------
    >>> table = whole_steps_table([(8, 1, 0, 0.009), (8, 4, 0, 0.012)], "example")
    >>> [round(float(table.time_s(8, w, 0)), 4) for w in (1, 4)]
    [0.009, 0.012]
    """
    steps = [[r for r in rows if (r[1] > 1) == drafted] for drafted in (False, True)]
    found = [measured_table(of, source) for of in steps if of]
    if not found:
        raise InputError(f"{source}: a table of step times needs at least one row of batch, width, context and seconds")
    return replace(
        found[0],
        drafted=found[-1],
        worst_residual=float(np.max([t.worst_residual for t in found])),
        source="; ".join(dict.fromkeys(t.source for t in found)),
        most=tuple(np.max([t.most for t in found], axis=0).tolist()),
    )


def load_measured_table(path: Path) -> MeasuredTable:
    """Measured table from a JSON document with ``rows``, each with batch, width, context and seconds.

    ``step_s`` and ``seconds`` name the time; a missing width is 1, a missing context 0. Rows are passes of one model,
    or, where ``whole_steps`` is true (``specplan ingest --step-table``), steps of a server with what drafts. A table of
    ``llama-bench`` (csv, json or markdown) is read as well.
    """
    text = read_text(path, "a table of step times")
    if (timed := llama_bench_rows(text, str(path))) is not None:
        return measured_table(timed, f"{path}, llama-bench")
    document = parse_json(text, str(path))
    try:
        raw = document["rows"] if isinstance(document, dict) else document
        rows = [
            (
                float(r["batch"]),
                float(r.get("width", 1)),
                float(r.get("context", 0)),
                float(r["seconds"] if "seconds" in r else r["step_s"]),
            )
            for r in raw
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        shape = '{"rows": [{"batch": 8, "width": 4, "context": 2048, "seconds": 0.012}, ...]}'
        raise InputError(f"{path}: expected {shape}: {error!r}") from None
    whole = isinstance(document, dict) and document.get("whole_steps") is True
    return (whole_steps_table if whole else measured_table)(rows, str(path))
