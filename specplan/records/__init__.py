"""What one speculative step did: the rows that replay, ingest and harness all write, and that one summary reads.

- `step.StepRecord`: one request's step
- `startup.StartupLog`: what an engine printed when it started
- `columns.StepColumns`: many steps as arrays
- `tally.Tally`: counts of any number of steps, which add up
- `files.StepWriter`, `files.read_steps`: steps in JSON lines, resumable, whole or not there
- `lines`: lines of files of any size in bounded memory
"""

from specplan.records.columns import StepColumns
from specplan.records.files import StepWriter, read_steps
from specplan.records.step import StepRecord
from specplan.records.tally import Clusters, Tally

__all__ = ["Clusters", "StepColumns", "StepRecord", "StepWriter", "Tally", "read_steps"]
