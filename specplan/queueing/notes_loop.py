"""What the loops write down as they go: events, gaps between emissions, a series over virtual time."""

import math

from specplan.queueing.compiled import loop
from specplan.queueing.state import (
    EVENTS,
    GAP_LEAST,
    GAP_RATIO,
    GAPS,
    REQ,
    SERIES,
    SERIES_ROWS,
    STEP,
    WIDTH,
    Floats,
    Ints,
)

_LOG_RATIO = math.log(GAP_RATIO)
_COLUMNS = len(SERIES)


@loop
def note(at: Ints, events: Ints, kind: int, r: int, value: int) -> None:
    """Add a row to the log of events."""
    row = at[EVENTS] * 4
    events[row] = at[STEP]
    events[row + 1] = kind
    events[row + 2] = r // REQ
    events[row + 3] = value
    at[EVENTS] += 1


@loop
def gap_bin(seconds: float) -> int:
    """Bin of a gap between two emissions of a request."""
    if seconds <= GAP_LEAST:
        return 0
    return min(int(math.log(seconds / GAP_LEAST) / _LOG_RATIO) + 1, GAPS - 1)


@loop
def note_series(
    clock: Floats,
    notes: Floats,
    start: float,
    seconds: float,
    running: int,
    waiting: int,
    blocks: int,
    emitted: int,
    prompted: int,
) -> None:
    """Add a step to the series; when virtual time leaves its last row, two rows become one."""
    while start >= clock[WIDTH] * SERIES_ROWS:
        for i in range(SERIES_ROWS // 2):
            for c in range(_COLUMNS):
                two = GAPS + 2 * i * _COLUMNS + c
                notes[GAPS + i * _COLUMNS + c] = notes[two] + notes[two + _COLUMNS]
        for i in range(GAPS + SERIES_ROWS // 2 * _COLUMNS, GAPS + SERIES_ROWS * _COLUMNS):
            notes[i] = 0.0
        clock[WIDTH] *= 2
    row = GAPS + int(start / clock[WIDTH]) * _COLUMNS
    notes[row] += seconds
    notes[row + 1] += running * seconds
    notes[row + 2] += waiting * seconds
    notes[row + 3] += blocks * seconds
    notes[row + 4] += emitted
    notes[row + 5] += prompted
