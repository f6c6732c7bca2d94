"""What the schedulers' loops read and write: a few flat arrays, and the names of the places in them.

A request is the place of its record in `State.req` (and, divided by `REQ`, its rank in order of arrival); a block is
the place of its record in `State.pool`. Requests wait in two parts: those that were preempted (a stack, whose top is
the front of the queue) and behind them those that arrived and were never admitted.

Few arrays keep compilation short: numba pays for each array that is handed to each function.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

# --- State.at: single numbers ------------------------------------------------------------------------------------
RUNNING: Final = 0  # requests that run
TOP: Final = 1  # request preempted last, -1 if none waits
STACKED: Final = 2  # preempted requests that wait
ARRIVED: Final = 3
ADMITTED: Final = 4  # requests that were admitted at least once
FINISHED: Final = 5
STEP: Final = 6
FREE: Final = 7  # free blocks, plain and kept
PLAIN: Final = 8  # free blocks without content
OLDEST: Final = 9  # first in the queue of eviction, -1 if it is empty
NEWEST: Final = 10
EVENTS: Final = 11  # rows of the event log in use
STEPS: Final = 12  # rows of the step log in use
STUCK: Final = 13  # 1 + rank of a request that can never run
PREEMPTIONS: Final = 14
EMITTED_SUM: Final = 15  # tokens
PROMPTED: Final = 16  # prompt tokens computed, recomputation included
HITS: Final = 17  # tokens found in the prefix cache at admissions
LOOKED: Final = 18  # tokens looked up there
DRAFTED: Final = 19  # drafted tokens that were verified
ACCEPTED: Final = 20  # accepted among them
DRAFTS: Final = 21  # drafts verified
TURNS: Final = 22  # request-steps that emitted
REQUEST_STEPS: Final = 23  # request-steps scheduled
LAST_GONE: Final = 24  # requests that the latest step ended
TAIL: Final = 25  # request put back last, where they queue (SGLang)
FULL: Final = 26  # whether admission waits for a request to leave (SGLang)
N_AT: Final = 27

# --- State.clock: seconds ----------------------------------------------------------------------------------------
NOW: Final = 0
BUSY: Final = 1  # in steps
DRAFT_S: Final = 2
VERIFY_S: Final = 3
HOST_S: Final = 4
PREFILL_S: Final = 5  # in steps that computed prompt tokens
IN_SYSTEM: Final = 6  # integral of arrived and unfinished requests
IN_BATCH: Final = 7  # integral of running requests
IN_POOL: Final = 8  # integral of used blocks
WIDTH: Final = 9  # of a row of the series
TURNAROUND: Final = 10  # from the end of a request to the arrival of the one that it lets come
UNTIL: Final = 11  # no step begins at or after it
RATIO: Final = 12  # share of what running requests may ask for that admission keeps free (SGLang)
N_CLOCK: Final = 13

# --- State.req: a record per request -----------------------------------------------------------------------------
REQ: Final = 20  # length of a record
PROMPT: Final = 0
OUTPUT: Final = 1  # tokens asked for
COMPUTED: Final = 2
EMITTED: Final = 3
PENDING: Final = 4  # drafts that wait for verification
DRAWN: Final = 5  # drafts drawn so far
VERIFIED: Final = 6  # verifications so far
HELD: Final = 7  # blocks
KEYED: Final = 8  # blocks whose content is noted
ROW: Final = 9  # of owned blocks
TRIES: Final = 10  # times preempted
IN_CHUNK: Final = 11  # whether the last step left tokens of its prompt
NEXT: Final = 12  # request below in the stack of preempted ones
DRAFT_AT: Final = 13  # its cyclic list of draft lengths in State.draws
DRAFT_N: Final = 14
ACCEPT_AT: Final = 15  # its cyclic list of accepted tokens
ACCEPT_N: Final = 16
IDS_AT: Final = 17  # its shared contents in State.ids
IDS_N: Final = 18
STAMP: Final = 19  # arrivals when it was put back (SGLang)

# --- State.when: a record per request, seconds ----------------------------------------------------------------------
WHEN: Final = 5
ARRIVAL: Final = 0
START: Final = 1  # first admission
FIRST: Final = 2  # first token
LAST: Final = 3  # latest emission
FINISH: Final = 4

# --- State.slots: a record per place among the running requests ---------------------------------------------------
SLOT: Final = 5
RUN: Final = 0  # request that runs there
CHOSEN: Final = 1  # n-th request of the step,
GRANTED: Final = 2  # its tokens
CHECKED: Final = 3  # and the drafts among them
FREE_ROW: Final = 4

# --- State.pool: a record per block, then the plain blocks, the table of contents, the rows of owned blocks ---------
BLK: Final = 5
HOLDERS: Final = 0
KEY: Final = 1  # content, 0 if none
TWIN: Final = 2  # next block of equal content, -1 if none
UNLISTED: Final = -2  # TWIN of a block whose content is not in the table
OLDER: Final = 3  # neighbours in the queue of eviction
NEWER: Final = 4

# --- State.notes: gaps between emissions, then the series, then the step log ---------------------------------------
GAP_LEAST: Final = 1e-6
GAP_RATIO: Final = 1.004  # logarithmic bins, so far apart
GAPS: Final = 6400
SERIES: Final = ("seconds", "running", "waiting", "blocks", "emitted", "prompted")
"""Columns of the series, a row per ``clock[WIDTH]`` seconds: sums of value times seconds, the last two of tokens."""
SERIES_ROWS: Final = 512
STEP_LOG: Final = GAPS + SERIES_ROWS * len(SERIES)
STEP_COLUMNS: Final = (
    "start", "seconds", "prefills", "prefill_tokens", "decodes", "decode_tokens", "running", "waiting", "free",
    "emitted",
)  # fmt: skip

# --- State.events: (step, kind, rank of the request, value) --------------------------------------------------------
SCHEDULED: Final = 0
CHECK: Final = 1
PREEMPT: Final = 2
LEFT: Final = 3
ADMIT: Final = 4
RESUME: Final = 5
EMIT: Final = 6
END: Final = 7
EVENTS_PER_SLOT: Final = 6


class Rules(NamedTuple):
    """An engine's limits as whole numbers, and where the parts of `State.pool` begin."""

    sglang: int
    max_seqs: int
    max_tokens: int
    max_len: int
    threshold: int
    block: int
    blocks: int
    lookahead: int
    draft_slots: int
    kappa: int
    prefix: int
    drop_hit: int
    paired: int
    closed: int
    log: int
    ids_unit: int
    requests: int
    plain_at: int
    table_at: int
    table_size: int
    owned_at: int
    row_blocks: int


class State(NamedTuple):
    """Everything that changes and everything that is looked up, so that a run can stop after any step and go on."""

    at: Ints
    clock: Floats
    req: Ints
    when: Floats
    slots: Ints
    pool: Ints
    draws: Small
    ids: Ints
    notes: Floats
    events: Ints
