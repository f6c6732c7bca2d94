"""What one speculative step did: the rows that replay, ingest and harness all write, and that one summary reads.

- `step.StepRecord`: one request's step
"""

from specplan.records.step import StepRecord

__all__ = ["StepRecord"]
