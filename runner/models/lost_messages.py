"""Whether a server lost a message on the way to its model: some chat templates drop what they do not expect.

A count of prompt tokens that the text cannot have is the sign: a chat whose lone system message Gemma 3's template
drops has 10 tokens, whatever its length.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.models.answers import usage_as_sent
from runner.models.interface import Completion, Request
from runner.models.plausible_usage import MAX_BYTES_PER_TOKEN, dense_bytes

WATCHED = 8
"""So many first answers of a group are looked at: a template drops the same in every game."""

MIN_BYTES = 400
"""Of a shorter prompt nothing is said: a few rare words are no sample of a language."""


class LostMessages:
    """Looks at the first answers of each of these groups."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._left = dict.fromkeys(groups, WATCHED)

    def counted(self, request: Request, completion: Completion) -> int | None:
        """The prompt tokens that a server counted, where its model cannot have had all messages; once for a group."""
        if request.group not in self._left:
            return None
        usage = None if completion.from_cache else usage_as_sent(completion)
        if usage is None or usage.estimated or not usage.prompt_tokens:
            return None
        self._left[request.group] -= 1
        # Some servers leave out what they had cached.
        counted, size = (
            usage.prompt_tokens + usage.cached_tokens,
            sum(dense_bytes(message["content"]) for message in request.messages),
        )
        is_lost = size >= MIN_BYTES and counted * MAX_BYTES_PER_TOKEN < size
        if is_lost or not self._left[request.group]:
            del self._left[request.group]
        return counted if is_lost else None
