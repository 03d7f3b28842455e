"""The errors of a provider's fine-tuning API, and the number of listings before a job is created again.

The trainer `openai` and the client of the API share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runner.base.errors import NipRunError

SETTLING_LISTINGS: Final = 6
"""Number of listings without an object before it is created again. One is not enough, as listings may be outdated."""


class ApiCallError(Exception):
    """A call to the fine-tuning API failed. Its cause is the client's error, unless that contains a secret."""

    def __init__(
        self, error: NipRunError, *, status: int | None, detail: Mapping[str, object], may_have_worked: bool
    ) -> None:
        super().__init__(str(error))
        self.error = error
        """The failure as an error of nip-run, whose type shows whether another attempt may succeed."""
        self.status = status
        self.detail = detail
        """The `error` object of the server's answer."""
        self.may_have_worked = may_have_worked
        """Whether the server may have executed the call despite the failure."""
