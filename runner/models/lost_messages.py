"""Whether a server lost a message on the way to its model: some chat templates drop what they do not expect, in silence.

A count of prompt tokens that the text cannot have is the sign. A chat whose lone system message Gemma 3's template drops
has 10 tokens, whatever its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runner.models.base import Completion, Request, byte_length
from runner.prompts.chat import ChatMessage

WATCHED = 8
"""So many first answers of a group are looked at: a template drops the same in every game."""

MIN_BYTES = 400
"""Of a shorter prompt nothing is said: a few rare words are no sample of a language."""

MAX_BYTES_PER_TOKEN = 12
"""No tokenizer packs a prompt so densely. English prose and code have 3 to 5 bytes a token, Chinese and Japanese with
the largest vocabularies up to 6, German up to 5; a long word has more, a page of them does not. Only a character again
and again (indentation, rules) has: of each such row one character is counted."""

_AGAIN = re.compile(r"(.)\1+", re.DOTALL)


class LostMessages:
    """Looks at the first answers of each of these groups."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._left = dict.fromkeys(groups, WATCHED)

    def note(self, request: Request, completion: Completion) -> str | None:
        """What to say of an answer, once for a group: mostly nothing."""
        if request.group not in self._left:
            return None
        usage = completion.usage
        if completion.from_cache or usage.estimated or not usage.prompt_tokens:
            return None
        self._left[request.group] -= 1
        # Some servers leave out what they had cached.
        counted, size = usage.prompt_tokens + usage.cached_tokens, _dense_bytes(request.messages)
        is_lost = size >= MIN_BYTES and counted * MAX_BYTES_PER_TOKEN < size
        if is_lost or not self._left[request.group]:
            del self._left[request.group]
        return _told(request, counted) if is_lost else None


def _dense_bytes(messages: Sequence[ChatMessage]) -> int:
    """The bytes of all texts, of a row of one character only the first."""
    return sum(byte_length(_AGAIN.sub(r"\1", message["content"])) for message in messages)


def _told(request: Request, counted: int) -> str:
    key = f"models.{request.group}"
    size = sum(byte_length(message["content"]) for message in request.messages)
    roles = ", ".join(message["role"] for message in request.messages)
    sample = request.sample
    return (
        f"the server of model group {request.group} counted {counted} prompt tokens in {size:,} bytes of messages "
        f"({roles}; {sample.agent} in round {sample.round} on {sample.datapoint}): it lost text, most likely because "
        f"its chat template drops a message. Try {key}.chat_format=alternating, and {key}.system_role=user where the "
        "model knows no system messages; `nip-run render` shows what is sent"
    )
