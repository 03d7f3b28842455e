"""Fine-tuning jobs at a provider: the calls, and what a failed call means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.base.errors import NipRunError

SETTLING_LISTINGS: Final = 6
"""Listings that must lack an object before it is created again: a listing may lag behind a creation."""


class ApiCallError(Exception):
    """A call to the fine-tuning API failed; its cause is the client's error, unless that holds a secret."""

    def __init__(
        self, error: NipRunError, *, status: int | None, detail: Mapping[str, Any], may_have_worked: bool
    ) -> None:
        super().__init__(str(error))
        self.error = error
        """The failure as one of ours, which says whether another attempt makes sense."""
        self.status = status
        self.detail = detail
        """The `error` object of the server's answer."""
        self.may_have_worked = may_have_worked
        """Whether the server may have carried the call out all the same."""
