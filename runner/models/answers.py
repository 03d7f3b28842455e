"""Interprets servers' answers: their choices, models and token counts, in chat completions and in Messages API answers.

The same functions read an answer on arrival, from a journal and from a cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import orjson

from runner.models.interface import Body, Choice, Completion, Usage

CHOICES: Final = "choices"
"""The key of the choices in a chat completion."""
CHOICES_ALTERED: Final = "choices"
"""The value in `Completion.altered` if a server returned more choices than requested. The surplus was removed."""
_DETAILS: Final = ("prompt_tokens_details", "completion_tokens_details")
"""The keys in a chat completion's usage whose values divide the prompt tokens and the answer tokens into classes."""
MAX_COUNT: Final = 1 << 27
"""The maximum token count. No model reads or writes 134 million tokens in one call, so larger numbers are ignored."""
MAX_REASON: Final = 200
"""The maximum length of a finish reason."""
MAX_TIER: Final = 40
"""The maximum length of a service tier's name."""
MAX_OTHER_BYTES: Final = 64 << 10
"""The maximum size of `Completion.other_fields`."""
MAX_DEPTH: Final = 222
"""Maximum nesting depth of an answer that is stored as JSON inside records and other documents."""
_MAX_WRITTEN_DEPTH: Final = 254
"""Maximum nesting depth that orjson can write."""

_FINISH_REASONS: Final = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "refusal": "content_filter", "model_context_window_exceeded": "length",
}  # fmt: skip
"""Stop reasons of the Messages API, with the equivalent finish reasons of chat completions."""

_SEPARATORS = re.compile(r"[ \t\r\n,:]*")
_LINE_ENDS = re.compile(rb"[\r\n][ \t\r\n]*")
"""Matches line ends between JSON tokens. (In JSON strings, line ends are always escaped.)"""


def make_body(content: bytes, data: Any, *, has_usage: bool) -> Body:
    """Return an answer as a `Body`, whose JSON is a single line. `data` is the parsed content."""
    line = content.strip()
    if b"\n" in line or b"\r" in line:
        line = _LINE_ENDS.sub(b"", line)
    return Body(line, is_deep(line, data), has_model=model_of(data) is not None, has_usage=has_usage)


def is_deep(content: bytes, data: Any) -> bool:
    """Return whether JSON is nested more deeply than `MAX_DEPTH`. `data` is the parsed content."""
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH:
        return False  # counting brackets is fast, and most answers have few
    # Add levels until orjson can write the data only if it has at most `MAX_DEPTH` levels of its own.
    for _ in range(_MAX_WRITTEN_DEPTH - MAX_DEPTH):
        data = [data]
    try:
        orjson.dumps(data)
    except (TypeError, RecursionError):
        return True
    return False


def choices_of(data: Mapping[str, object]) -> tuple[Choice, ...]:
    """Return the choices of a server's answer."""
    if is_messages_answer(data):
        return (_messages_answer_choice(data),)
    return tuple(_choice(item) for item in message_choices(data))


def is_messages_answer(data: Mapping[str, object]) -> bool:
    """Return whether an answer comes from Anthropic's Messages API. All other answers are chat completions."""
    return data.get("type") == "message" and isinstance(data.get("content"), list) and CHOICES not in data


def _messages_answer_choice(data: Mapping[str, Any]) -> Choice:
    blocks = [block for block in data["content"] if isinstance(block, dict)]
    stop_reason = data.get("stop_reason")
    reason = None if stop_reason is None else as_text(stop_reason)[:MAX_REASON]
    reason = _FINISH_REASONS.get(reason or "", reason)
    refusal = None
    if stop_reason == "refusal":
        details = data.get("stop_details")
        explanation = details.get("explanation") if isinstance(details, dict) else None
        refusal = explanation if isinstance(explanation, str) and explanation else "the model refused"
    return Choice(answer_text(_joined_text(blocks, "text"), reason), reason, refusal, _joined_text(blocks, "thinking"))


def _joined_text(blocks: list[dict[str, Any]], kind: str) -> str | None:
    """Return the text of all blocks of a kind; None if there are none."""
    texts = [text for block in blocks if block.get("type") == kind and isinstance(text := block.get(kind), str)]
    return "".join(texts) if texts else None


def message_choices(data: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the choices of a chat completion that contain a message, unchanged."""
    raw = data.get(CHOICES)
    items = [item for item in raw if isinstance(item, dict)] if isinstance(raw, list) else []
    return [item for item in items if isinstance(item.get("message"), dict)]


def _choice(item: Mapping[str, Any]) -> Choice:
    message, reason = item["message"], item.get("finish_reason")
    # vLLM and routers use the first name; DeepSeek and vLLM before 0.10 use the second one.
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    content = message.get("content")
    if isinstance(content, list):  # of Mistral's reasoning models
        blocks = [block for block in content if isinstance(block, dict)]
        thoughts = [block["thinking"] for block in blocks if isinstance(block.get("thinking"), list)]
        reasoning = reasoning or _joined_text([part for part in chain(*thoughts) if isinstance(part, dict)], "text")
        content = _joined_text(blocks, "text")
    return Choice(
        answer_text(content, reason),
        reason if reason is None else as_text(reason)[:MAX_REASON],
        refusal_in(message),
        reasoning if isinstance(reasoning, str) else None,
    )


def answer_text(text: object, finish_reason: object) -> str | None:
    """Return the text of an answer; None if there is none, or if it is blank because it reached the token limit."""
    if not isinstance(text, str) or (finish_reason == "length" and not text.strip()):
        return None
    return text


def refusal_in(message: Mapping[str, object]) -> str | None:
    """Return the refusal in a message, if any. Some proxies put it into `provider_specific_fields`."""
    proxy_fields = message.get("provider_specific_fields")
    for refusal in (message.get("refusal"), proxy_fields.get("refusal") if isinstance(proxy_fields, dict) else None):
        if isinstance(refusal, str) and refusal:
            return refusal
    return None


def as_text(value: object) -> str:
    """Return any value that a server may send as text, for messages."""
    try:
        return str(value)
    except (RecursionError, ValueError):  # for deeply nested lists, or a number with thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


def model_of(data: Mapping[str, object]) -> str | None:
    """Return the name of the model in the answer; None if there is none."""
    model = data.get("model")
    return model if isinstance(model, str) and model else None


def usage_of(data: Mapping[str, object]) -> Usage | None:
    """Return the usage in a stored answer; None if the answer has no count of prompt tokens.

    This function must not change, because the costs of finished runs depend on it. For new answers, use
    `reported_usage`.
    """
    raw = data.get("usage")
    if not isinstance(raw, dict):
        return None
    if is_messages_answer(data):
        return _messages_answer_usage(raw)
    prompt, answer = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    if prompt is None:
        return None
    of_prompt, of_answer = (details if isinstance(details := raw.get(name), dict) else {} for name in _DETAILS)
    return Usage(
        prompt, answer or 0, min(_count_in(of_prompt, "cached_tokens"), prompt), answer is None,
        _count_in(of_prompt, "cache_write_tokens"), _count_in(of_answer, "reasoning_tokens"),
        _count_in(of_prompt, "audio_tokens"), _count_in(of_answer, "audio_tokens"), _tier(data.get("service_tier")),
    )  # fmt: skip


def _messages_answer_usage(raw: Mapping[str, object]) -> Usage | None:
    """Return the usage of an answer of the Messages API; None if it has no count of input tokens.

    The count of input tokens does not include the tokens that the server read from or wrote to its cache.
    """
    prompt, answer = _count(raw.get("input_tokens")), _count(raw.get("output_tokens"))
    if prompt is None:
        return None
    cached = _count_in(raw, "cache_read_input_tokens")
    cache_written = _count_in(raw, "cache_creation_input_tokens")
    details = raw.get("output_tokens_details")
    thinking = _count_in(details, "thinking_tokens") if isinstance(details, dict) else 0
    return Usage(
        prompt + cached + cache_written, answer or 0, cached, answer is None, cache_written, thinking,
        service_tier=_tier(raw.get("service_tier")),
    )  # fmt: skip


def _tier(tier: object) -> str | None:
    """Return a service tier; None if it is not a valid name."""
    return tier if isinstance(tier, str) and 0 < len(tier) <= MAX_TIER and tier.isprintable() else None


_COUNT_NAMES: Final = (
    ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
    ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"),
    ("reasoning_tokens",),
)
"""The names that servers give to three counts: cached tokens, tokens written to the cache, and reasoning tokens.

OpenAI, Anthropic, DeepSeek and proxies use different names, in the usage or in its details.
"""


def reported_usage(data: Mapping[str, object], stored: Usage | None = None) -> Usage | None:
    """Return the usage in a new answer of any server; None if it has no count of prompt tokens.

    Some servers do not include cached tokens in the prompt tokens, or reasoning tokens in the answer tokens. If
    `total_tokens` shows this, these tokens are added. `stored` is the result of `usage_of`, if the caller has it.
    """
    usage, raw = stored or usage_of(data), data.get("usage")
    if usage is None or not isinstance(raw, dict) or is_messages_answer(data):
        return usage
    mappings = [raw, *(details for details in map(raw.get, _DETAILS) if isinstance(details, dict))]
    cached, cache_written, reasoning = (
        max([_count_in(counts, name) for counts in mappings for name in names]) for names in _COUNT_NAMES
    )
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    uncounted = _count_in(raw, "total_tokens") - prompt - answer
    if cached + cache_written and uncounted in (cached + cache_written, cached + cache_written + reasoning):
        prompt, uncounted = prompt + cached + cache_written, uncounted - cached - cache_written
    return Usage(
        prompt, answer + max(uncounted, 0), cached, usage.estimated and uncounted <= 0, cache_written, reasoning,
        usage.audio_input_tokens, usage.audio_output_tokens, usage.service_tier,
    )  # fmt: skip


def usage_as_sent(completion: Completion) -> Usage | None:
    """Return the usage in the server's answer; the recorded usage if the answer is not stored or cannot be parsed."""
    body = completion.body
    return completion.usage if body is None or body.is_deep else reported_usage(orjson.loads(body.json))


def _count_in(counts: Mapping[str, object], name: str) -> int:
    """Return the count of this name; 0 if it is missing or invalid."""
    return (_count(counts[name]) if name in counts else None) or 0


def _count(value: object) -> int | None:
    """Return a value if it is a valid number of tokens; otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def without_body(completion: Completion) -> Completion:
    """Convert a completion to the form of journals before format 2.

    Instead of the complete answer, this form has `Completion.other_fields`, unless they are too large.
    """
    if completion.body is None:
        return completion
    data = {} if completion.body.is_deep else orjson.loads(completion.body.json)
    other_fields = {name: value for name, value in data.items() if name not in (CHOICES, "model", "usage", "object")}
    other_fields = other_fields if len(orjson.dumps(other_fields)) <= MAX_OTHER_BYTES else {}
    choices = tuple(replace(choice, reasoning=None) for choice in completion.choices)
    return replace(completion, choices=choices, other_fields=other_fields, body=None)


def split_choices(completion: Completion) -> list[Completion]:
    """Split a completion into one for each choice. The first has the usage of the call; the others count as cached."""
    if len(completion.choices) == 1:
        return [completion]
    no_usage, body = Usage(estimated=completion.usage.estimated), completion.body
    parts = []
    for index, choice in enumerate(completion.choices):
        part_body = None if body is None else replace(body, choice=index, is_shared=index > 0)
        part = replace(completion, choices=(choice,), body=part_body)
        parts.append(part if index == 0 else replace(part, usage=no_usage, from_cache=True))
    return parts


def with_own_choice(completion: Completion) -> Completion:
    """Return a completion without the choices of other samples in its body.

    The rest of the body stays unchanged. A body that is nested too deeply to be edited keeps all choices.
    """
    body = completion.body
    if body is None or body.choice is None:
        return completion
    return replace(completion, body=_with_choices(body, body.choice, body.choice + 1))


def with_first_choices(completion: Completion, number: int) -> Completion:
    """Return a completion with at most `number` choices."""
    if len(completion.choices) <= number:
        return completion
    body = None if completion.body is None else _with_choices(completion.body, 0, number)
    altered = (*completion.altered, CHOICES_ALTERED)
    return replace(completion, choices=completion.choices[:number], body=body, altered=altered)


def _with_choices(body: Body, start: int, end: int) -> Body:
    """Return a body with only the choices from `start` to `end`.

    A body that is nested too deeply keeps all choices, and has the index `start` of the choice to use.
    """
    with suppress(RecursionError):
        text = body.json.decode()
        start_of_list, _ = _member_span(text, text.index("{"), CHOICES)
        choices = list(_item_spans(text, start_of_list))
        spans = [choice for choice in choices if message_choices({CHOICES: [choice[2]]})][start:end]
        shortened = text[: choices[0][0]] + ",".join(text[span[0] : span[1]] for span in spans) + text[choices[-1][1] :]
        return replace(body, json=shortened.encode(), choice=None)
    return replace(body, choice=start)


def extract_json(content: bytes, *names: str) -> bytes:
    """Return the value at nested names in an object of valid JSON, byte for byte.

    Raises:
        LookupError: a name is missing.
        RecursionError: the object is nested too deeply to be searched.
    """
    text = content.decode()
    start, end = text.index("{"), len(text)
    for name in names:
        start, end = _member_span(text, start, name)
    return text[start:end].encode()


def with_values(content: bytes, replacements: Mapping[str, object]) -> bytes:
    """Replace values in an object of valid JSON; everything else stays, byte for byte.

    Raises:
        RecursionError: the object is nested too deeply to be searched.
    """
    text = content.decode()
    members = list(_item_spans(text, text.index("{")))
    pieces, end = [], 0
    for (_, _, name), (start, stop, _) in zip(members[::2], members[1::2], strict=True):
        if name in replacements:
            pieces += [text[end:start], orjson.dumps(replacements[name]).decode()]
            end = stop
    return "".join((*pieces, text[end:])).encode()


def _member_span(text: str, start: int, name: str) -> tuple[int, int]:
    """Return the start and end of a name's value in an object; of the last value, if the name is repeated.

    Raises:
        LookupError: the name is missing.
    """
    members = list(_item_spans(text, start))
    return [value[:2] for key, value in zip(members[::2], members[1::2], strict=True) if key[2] == name][-1]


def _item_spans(text: str, position: int) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each item of a list in valid JSON, or of each name and value of an object."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)  # numbers of any length are accepted
    position += 1
    while True:
        position = _SEPARATORS.match(text, position).end()  # type: ignore[union-attr]
        if text[position] in "]}":
            return
        value, end = decoder.raw_decode(text, position)
        yield position, end, value
        position = end
