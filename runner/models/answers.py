"""A server's answer, as it is kept: on arrival, from a journal and from a cache read by the same functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson

from runner.models.interface import Body, Choice, Completion, Usage

CHOICES: Final = "choices"
EXTRA: Final = "choices"
"""In `altered`: more choices came than were requested, and were removed."""
_DETAILS: Final = ("prompt_tokens_details", "completion_tokens_details")
MAX_COUNT: Final = 1 << 27
"""No model reads or writes 134 million tokens in one call: a larger count is not a count."""
MAX_REASON: Final = 200
MAX_TIER: Final = 40
MAX_OTHER_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 222
"""So deep may JSON be nested and be written again, in a record or in whatever else a reader puts it into."""
_WRITTEN_DEPTH: Final = 254
"""So deep the library writes."""

_FINISH_REASONS: Final = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "refusal": "content_filter", "model_context_window_exceeded": "length",
}  # fmt: skip
"""The stop reasons of the Messages API as finish reasons of chat completions."""

_GAP = re.compile(r"[ \t\r\n,:]*")
_LINE_ENDS = re.compile(rb"[\r\n][ \t\r\n]*")
"""Between the parts of JSON alone: in its texts they are escaped."""


def body_of(content: bytes, data: Any) -> Body:
    """An answer that was read, in one line."""
    line = content.strip()
    if b"\n" in line or b"\r" in line:
        line = _LINE_ENDS.sub(b"", line)
    return Body(line, is_deep(line, data), has_model=model_of(data) is not None)


def is_deep(content: bytes, data: Any) -> bool:
    """Whether JSON is nested deeper than `MAX_DEPTH`; most has fewer brackets than that."""
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH:
        return False
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        data = [data]
    try:
        orjson.dumps(data)
    except (TypeError, RecursionError):
        return True
    return False


def choices_of(data: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the answers that a server's answer holds."""
    if is_message(data):
        return (_message_choice(data),)
    return tuple(_choice(item) for item in counted(data))


def is_message(data: Mapping[str, Any]) -> bool:
    """Return whether an answer is one of Anthropic's Messages API; all others are chat completions."""
    return data.get("type") == "message" and isinstance(data.get("content"), list) and CHOICES not in data


def _message_choice(data: Mapping[str, Any]) -> Choice:
    blocks = [block for block in data["content"] if isinstance(block, dict)]
    stop_reason = data.get("stop_reason")
    reason = None if stop_reason is None else as_text(stop_reason)[:MAX_REASON]
    reason = _FINISH_REASONS.get(reason or "", reason)
    refusal = None
    if stop_reason == "refusal":
        details = data.get("stop_details")
        explanation = details.get("explanation") if isinstance(details, dict) else None
        refusal = explanation if isinstance(explanation, str) and explanation else "the model refused"
    return Choice(written(_joined(blocks, "text"), reason), reason, refusal, _joined(blocks, "thinking"))


def _joined(blocks: list[dict[str, Any]], kind: str) -> str | None:
    """Return the text of all blocks of one kind; None if there is none."""
    texts = [text for block in blocks if block.get("type") == kind and isinstance(text := block.get(kind), str)]
    return "".join(texts) if texts else None


def counted(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its choices that hold a message, as they came."""
    raw = data.get(CHOICES)
    found = [item for item in raw if isinstance(item, dict)] if isinstance(raw, list) else []
    return [item for item in found if isinstance(item.get("message"), dict)]


def _choice(item: Mapping[str, Any]) -> Choice:
    message, reason = item["message"], item.get("finish_reason")
    # By its present name in vLLM and at routers, and by that of DeepSeek and vLLM before 0.10.
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    return Choice(
        written(message.get("content"), reason),
        reason if reason is None else as_text(reason)[:MAX_REASON],
        refusal_in(message),
        reasoning if isinstance(reasoning, str) else None,
    )


def written(text: object, finish_reason: object) -> str | None:
    """The text of an answer: None also for the blank one of which the limit was reached before a word of it came."""
    if not isinstance(text, str) or (finish_reason == "length" and not text.strip()):
        return None
    return text


def refusal_in(message: Mapping[str, Any]) -> str | None:
    """What a message says for a refusal, also where a proxy puts it."""
    more = message.get("provider_specific_fields")
    for refusal in (message.get("refusal"), more.get("refusal") if isinstance(more, dict) else None):
        if isinstance(refusal, str) and refusal:
            return refusal
    return None


def as_text(value: object) -> str:
    """Anything that a server may send, for messages."""
    try:
        return str(value)
    except (RecursionError, ValueError):  # lists in lists in lists, a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


def model_of(data: Mapping[str, Any]) -> str | None:
    """The model that it says gave it."""
    model = data.get("model")
    return model if isinstance(model, str) and model else None


def usage_of(data: Mapping[str, Any]) -> Usage | None:
    """Return the usage that a stored answer has if its record has none; None if it does not count the prompt's tokens.

    Costs of finished runs depend on it, so it stays as it is. `reported_usage` reads what servers send.
    """
    raw = data.get("usage")
    if not isinstance(raw, dict):
        return None
    if is_message(data):
        return _message_usage(raw)
    prompt, answer = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    if prompt is None:
        return None
    return Usage(
        prompt,
        answer or 0,
        min(_detail(raw, "prompt", "cached_tokens"), prompt),
        answer is None,
        _detail(raw, "prompt", "cache_write_tokens"),
        _detail(raw, "completion", "reasoning_tokens"),
        _detail(raw, "prompt", "audio_tokens"),
        _detail(raw, "completion", "audio_tokens"),
        _tier(data.get("service_tier")),
    )


def _message_usage(raw: Mapping[str, Any]) -> Usage | None:
    """Return the usage of a message, whose input tokens leave out those that were read from the cache or written to it.

    None if it does not count the prompt's tokens.
    """
    prompt, answer = _count(raw.get("input_tokens")), _count(raw.get("output_tokens"))
    if prompt is None:
        return None
    cached = _count(raw.get("cache_read_input_tokens")) or 0
    cache_written = _count(raw.get("cache_creation_input_tokens")) or 0
    details = raw.get("output_tokens_details")
    thinking = _count(details.get("thinking_tokens")) if isinstance(details, dict) else None
    return Usage(
        prompt + cached + cache_written,
        answer or 0,
        cached,
        answer is None,
        cache_written,
        thinking or 0,
        service_tier=_tier(raw.get("service_tier")),
    )


def _tier(tier: object) -> str | None:
    return tier if isinstance(tier, str) and 0 < len(tier) <= MAX_TIER and tier.isprintable() else None


_NAMES: Final = (
    ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
    ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"),
    ("reasoning_tokens",),
)
"""The names of cached, written and reasoning tokens at OpenAI, Anthropic, DeepSeek and proxies, in the usage itself or
in its details."""


def reported_usage(data: Mapping[str, Any]) -> Usage | None:
    """Return the usage that a server sent, under any name in use. `total_tokens` shows which parts count apart."""
    usage, raw = usage_of(data), data.get("usage")
    if usage is None or not isinstance(raw, dict) or is_message(data):
        return usage
    places = [raw, *(part for part in map(raw.get, _DETAILS) if isinstance(part, dict))]
    cached, written, reasoning = (
        max(_count(place.get(name)) or 0 for place in places for name in names) for names in _NAMES
    )
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    rest = (_count(raw.get("total_tokens")) or 0) - prompt - answer
    if cached + written and rest in (cached + written, cached + written + reasoning):
        prompt, rest = prompt + cached + written, rest - cached - written
    return replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=answer + max(rest, 0),
        cached_tokens=cached,
        estimated=usage.estimated and rest <= 0,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
    )


def usage_as_sent(completion: Completion) -> Usage | None:
    """Return the usage as the server sent it, if its answer is stored."""
    body = completion.body
    return completion.usage if body is None or body.is_deep else reported_usage(orjson.loads(body.json))


def _detail(usage: Mapping[str, Any], of: str, name: str) -> int:
    details = usage.get(f"{of}_tokens_details")
    return (_count(details.get(name)) if isinstance(details, dict) else None) or 0


def _count(value: object) -> int | None:
    """A number of tokens; None for whatever else a server sends."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def without_body(completion: Completion) -> Completion:
    """A completion as journals before format 2 take it: of the answer's other fields those that are not too many."""
    if completion.body is None:
        return completion
    data = {} if completion.body.is_deep else orjson.loads(completion.body.json)
    other = {name: value for name, value in data.items() if name not in (CHOICES, "model", "usage", "object")}
    other = other if len(orjson.dumps(other)) <= MAX_OTHER_BYTES else {}
    choices = tuple(replace(choice, reasoning=None) for choice in completion.choices)
    return replace(completion, choices=choices, other=other, body=None)


def split(completion: Completion) -> list[Completion]:
    """A completion of many choices as one for each; the first carries the usage of the whole call, and is the call."""
    first, *rest = completion.choices
    if not rest:
        return [completion]
    nothing, body = Usage(estimated=completion.usage.estimated), completion.body
    bodies = [
        None if body is None else replace(body, choice=index, is_shared=index > 0)
        for index in range(len(completion.choices))
    ]
    return [
        replace(completion, choices=(first,), body=bodies[0]),
        *(
            replace(completion, choices=(choice,), usage=nothing, from_cache=True, body=part)
            for choice, part in zip(rest, bodies[1:], strict=True)
        ),
    ]


def with_own_choice(completion: Completion) -> Completion:
    """A completion whose body holds no other sample's choice: what stands by itself is whole, and holds no more.

    The others are cut out, and all else stays as it came. A body that is too deep to be cut keeps them.
    """
    body = completion.body
    if body is None or body.choice is None:
        return completion
    return replace(completion, body=_with_choices(body, body.choice, body.choice + 1))


def with_first_choices(completion: Completion, number: int) -> Completion:
    """Return a completion with so many choices at most."""
    if len(completion.choices) <= number:
        return completion
    body = None if completion.body is None else _with_choices(completion.body, 0, number)
    return replace(completion, choices=completion.choices[:number], body=body, altered=(*completion.altered, EXTRA))


def _with_choices(body: Body, start: int, end: int) -> Body:
    """The body with these of its choices alone; one that is too deep to be cut stays, and its first of them is used."""
    with suppress(RecursionError):
        text = body.json.decode()
        at, _ = _member(text, text.index("{"), CHOICES)
        choices = list(_spans(text, at))
        own = [choice for choice in choices if counted({CHOICES: [choice[2]]})][start:end]
        cut = text[: choices[0][0]] + ",".join(text[one[0] : one[1]] for one in own) + text[choices[-1][1] :]
        return replace(body, json=cut.encode(), choice=None)
    return replace(body, choice=start)


def part_of(content: bytes, *names: str) -> bytes | None:
    """The value that stands under these names, one in another, in an object of valid JSON: as it came, byte for byte.

    None where it is nested too deep to be looked for.

    Raises:
        LookupError: there is none.
    """
    with suppress(RecursionError):
        text = content.decode()
        start, end = text.index("{"), len(text)
        for name in names:
            start, end = _member(text, start, name)
        return text[start:end].encode()
    return None


def with_values(content: bytes, changed: Mapping[str, Any]) -> bytes:
    """An object of valid JSON with these values in the place of its own: all else as it came, byte for byte.

    Raises:
        RecursionError: it is nested too deep to be looked through.
    """
    text = content.decode()
    members = list(_spans(text, text.index("{")))
    pieces, end = [], 0
    for (_, _, name), (start, stop, _) in zip(members[::2], members[1::2], strict=True):
        if name in changed:
            pieces += [text[end:start], orjson.dumps(changed[name]).decode()]
            end = stop
    return "".join((*pieces, text[end:])).encode()


def _member(text: str, at: int, name: str) -> tuple[int, int]:
    """Where the value under a name begins and ends in an object: the last of that name, as readers have it.

    Raises:
        LookupError: there is none.
    """
    members = list(_spans(text, at))
    return [value[:2] for key, value in zip(members[::2], members[1::2], strict=True) if key[2] == name][-1]


def _spans(text: str, at: int) -> Iterator[tuple[int, int, Any]]:
    """Where each value of a list in valid JSON begins and ends, and what it is; of an object, each name and value."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)  # no number is too long for that
    at += 1
    while True:
        at = _GAP.match(text, at).end()  # type: ignore[union-attr]
        if text[at] in "]}":
            return
        value, end = decoder.raw_decode(text, at)
        yield at, end, value
        at = end
