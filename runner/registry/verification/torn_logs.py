"""Find incomplete records at the end of a run's logs, for `verify`.

An interrupted write leaves such a record behind. All readers skip it, so it changes no result.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.storage.log_lines import scan
from runner.base.storage.safe_files import open_to_read
from runner.results.folder import RunFolder


def find_torn_logs(run: RunFolder, identity: str) -> Iterator[str]:
    """Yield a message for each log that ends in an incomplete record.

    Raises:
        JournalError: a log is damaged before its end.
    """
    for log in (run.journal, run.stage_log):
        if log.is_file():
            with open_to_read(log) as file:
                size = sum(len(line) for _, line, record in scan(file, log, identity) if record is None)
            if size:
                yield f"{log.name} ends with {size:,} bytes of an incomplete record"
