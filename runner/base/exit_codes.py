"""Exit codes of the commands, apart from the exceptions: `--help` must not wait for the import of their dataclasses."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """The exit code of a command, with its `meaning` as `--help` prints it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done"
    FAILED = 1, "the run failed, is incomplete, or waits for a model"
    USAGE = 2, "wrong usage or an invalid spec"
    BUDGET = 3, "the budget is used up"
    REFUSED = 4, "the provider refused the API key, the model or a parameter, or the account has no money"
    UNDECIDED = 5, "there is too little data to decide whether an assertion holds"
    INTERRUPTED = 130, "interrupted"


EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
"""A list of the exit codes for help."""
