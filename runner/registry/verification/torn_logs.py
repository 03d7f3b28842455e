"""What a cut-off write left at the end of a run's logs: no record, so that nothing is computed from it."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.storage.log_lines import scan
from runner.base.storage.safe_files import open_to_read
from runner.results.folder import RunFolder


def torn_logs(run: RunFolder, identity: str) -> Iterator[str]:
    """How many torn bytes each log ends in, where it does.

    Raises:
        JournalError: a log is damaged before its end.
    """
    for log in (run.journal, run.stage_log):
        if log.is_file():
            with open_to_read(log) as file:
                torn = sum(len(line) for _, line, record in scan(file, log, identity) if record is None)
            if torn:
                yield f"{log.name} ends in {torn:,} torn bytes"
