"""Messages of a transcript, independent of the tool that wrote them, and their text for prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import Any, Final

from runner.base.errors import errors_as

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of messages. A result with the old role `function` becomes one with the role `tool`."""
_TEXTS = ("text", "input_text", "output_text", "refusal")
_MEDIA = (
    "image", "image_url", "image_file", "input_image", "audio", "audio_url", "input_audio", "video", "video_url",
    "input_video", "document", "data", "file", "input_file",
)  # fmt: skip
"""The types of parts of a message that are only named in its text."""
_INDENT: Final = "  "
"""The start of each line of content. Lines without it are headings, the tags around reasoning, or tool calls."""


class InvalidTranscript(Exception):
    """Raised if a file is not a transcript that can be read; the message says what is wrong, and where in the file."""


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool in a message of an agent."""

    id: str
    tool: str
    arguments: str


@dataclass(frozen=True)
class TranscriptMessage:
    """A message of a transcript."""

    role: str
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolUse, ...] = ()
    name: str = ""
    """The name of the agent, or of the tool that returned the text; empty if unknown."""
    answers: str | None = None
    """The id of the tool call that the message is the result of; None for other messages."""
    id: str | None = None

    def render(self, number: int, *, reasoning: bool) -> str:
        """Return the message as text, with its number in the transcript, counted from 1.

        All lines of content are indented, so that no content can look like another message, a tag or a tool call.
        """
        heading = " ".join(f"[{number}] {self.role} {self.name}".split())
        thoughts = indent(self.reasoning, _INDENT) if reasoning else ""
        parts = ["<reasoning>", thoughts, "</reasoning>"] if thoughts else []
        parts += [indent(self.text, _INDENT)] if self.text else []
        parts += [indent(f"-> {call.tool} {call.arguments}", _INDENT).removeprefix(_INDENT) for call in self.tool_calls]
        return "\n".join([heading, *parts])


@dataclass(frozen=True)
class TranscriptSample:
    """The messages of an agent on one sample of a task, and the scores that they got."""

    id: str
    """Unique in the file."""
    sample: str
    """The id of the task's sample, which all epochs have in common."""
    messages: Sequence[TranscriptMessage]
    epoch: int | None = None
    transcript_id: str | None = None
    task: str | None = None
    model: str | None = None
    input: str | None = None
    target: str | None = None
    error: str | None = None
    """Why the tool could not finish the sample; None if it did."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def parse_message(value: Any) -> list[TranscriptMessage]:
    """Parse a chat message as OpenAI, Anthropic, Inspect, Scout or Hugging Face session traces write it.

    If its content has results of tools, the message is split: each result becomes a message with the role `tool`.

    Raises:
        InvalidTranscript: the value is not such a message.
    """
    if not isinstance(value, dict):
        raise InvalidTranscript("it is not a JSON object")
    role = value.get("role")
    if role not in ROLES:
        raise InvalidTranscript(f"its role is {str(role)[:40]!r}, not one of {', '.join(ROLES)}")
    answers = value.get("tool_call_id", value.get("toolCallId"))
    if role == "function":  # it answers the call of the function with its name
        role, answers = "tool", value.get("name")
    name = value.get("function") or value.get("name") if role == "tool" else value.get("name")
    empty = TranscriptMessage(
        role=role,
        text="",
        name=name if isinstance(name, str) else "",
        answers=None if answers is None else str(answers),
        id=None if value.get("id") is None else str(value["id"]),
    )
    content, refusal = value.get("content"), value.get("refusal")
    messages = _parse_content(refusal if content is None and isinstance(refusal, str) else content, empty)
    for key in ("reasoning_content", "reasoningContent", "reasoning"):
        if isinstance(value.get(key), str):
            messages[0] = replace(messages[0], reasoning=value[key])
    last, error = messages[-1], value.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str) and error["message"] not in last.text:
        last = replace(last, text=f"{last.text}\nError: {error['message']}".strip())
    messages[-1] = replace(last, tool_calls=(*last.tool_calls, *_parse_tool_calls(value)))
    messages = [message for message in messages if message != empty]
    if not messages and "content" not in value:
        raise InvalidTranscript(f"it has none of content, tool calls and reasoning, only {', '.join(map(repr, value))}")
    return messages or [empty]


def _parse_content(content: Any, empty: TranscriptMessage) -> list[TranscriptMessage]:
    """Return `empty` with the content; if results of tools split it, also the results and the parts after them."""
    if not isinstance(content, list):
        return [replace(empty, text=_parse_text(content))]
    messages: list[TranscriptMessage] = []
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolUse] = []

    def close() -> None:
        text, thoughts = ("\n".join(filter(None, parts)) for parts in (texts, reasoning))
        messages.append(replace(empty, text=text, reasoning=thoughts, tool_calls=tuple(calls)))
        for parts in (texts, reasoning, calls):
            parts.clear()

    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "reasoning":
            text = part.get("summary") if part.get("redacted") else part.get("reasoning", part.get("text"))
            reasoning.append(str(text or ""))
        elif kind == "thinking":
            reasoning.append(_parse_text(part.get("thinking")))
        elif kind == "tool_use":
            calls.append(_parse_tool_call(part))
        elif kind not in ("tool_result", "redacted_thinking"):
            texts.append(_parse_text_part(part))
        if kind == "tool_result" or (kind == "tool_use" and (part.get("result"), part.get("error")) != (None, None)):
            close()
            messages.append(_parse_result(part, empty.id))
    close()
    return messages


def _parse_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidTranscript("its content is neither a text nor a list")
    return "\n".join(filter(None, map(_parse_text_part, content)))


def _parse_text_part(part: Any) -> str:
    """Return the text of a part of a message. Images, sounds and files are named, but not included."""
    if not isinstance(part, dict):
        raise InvalidTranscript("a part of its content is not a JSON object")
    kind = part.get("type", "text")
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, str) and kind in (*_TEXTS, *_MEDIA):
        return text
    if kind in _MEDIA:
        return f"[{kind}]"
    raise InvalidTranscript(
        f"a part of its content with the type {str(kind)[:40]!r} cannot be read; convert it to a part with the type "
        "text, thinking, tool_use or tool_result"
    )


def _parse_result(part: Mapping[str, Any], message_id: str | None) -> TranscriptMessage:
    """Parse a result of a tool: Anthropic's part `tool_result`, or Inspect's part `tool_use`, which has its result."""
    if part["type"] == "tool_use":
        call, result, error = _parse_tool_call(part), part.get("result"), part.get("error")
        text = result if isinstance(result, str) else "" if result is None else json.dumps(result, ensure_ascii=False)
        text = text if error is None else f"{text}\nError: {error}".strip()
        return TranscriptMessage("tool", text, name=call.tool, answers=call.id, id=message_id)
    text, answers = _parse_text(part.get("content")), part.get("tool_use_id")
    text = f"Error: {text}" if part.get("is_error") else text
    return TranscriptMessage("tool", text, answers=None if answers is None else str(answers), id=message_id)


def _parse_tool_calls(message: Mapping[str, object]) -> tuple[ToolUse, ...]:
    calls = message.get("tool_calls") or message.get("toolCalls") or []
    if not isinstance(calls, list):
        raise InvalidTranscript("its tool calls are not a list")
    legacy = message.get("function_call")
    if legacy is None:
        return tuple(map(_parse_tool_call, calls))
    use = _parse_tool_call({"function": legacy})
    return (*map(_parse_tool_call, calls), replace(use, id=use.tool))


def _parse_tool_call(call: Any) -> ToolUse:
    """Parse a call: of a function, with OpenAI's type `custom`, whose `input` is any text, or a part `tool_use`."""
    if not isinstance(call, dict):
        raise InvalidTranscript("a tool call is not a JSON object")
    function, custom = call.get("function"), call.get("custom")
    tool, arguments = function, call.get("arguments")
    if isinstance(function, dict):
        tool, arguments = function.get("name"), function.get("arguments")
    elif isinstance(custom, dict):
        tool, arguments = custom.get("name"), custom.get("input")
    elif call.get("type") == "tool_use":
        tool, arguments = call.get("name"), call.get("arguments", call.get("input"))
    if not isinstance(tool, str):
        raise InvalidTranscript("a tool call names no function")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return ToolUse("" if call.get("id") is None else str(call["id"]), tool, arguments)


def parse_messages(values: Any) -> tuple[TranscriptMessage, ...]:
    """Parse a list of messages.

    Raises:
        InvalidTranscript: the value is not a list of messages; the error names the message.
    """
    if not isinstance(values, list):
        raise InvalidTranscript("it has no list of messages")
    messages: list[TranscriptMessage] = []
    for number, value in enumerate(values, 1):
        with errors_as(InvalidTranscript, f"message {number} cannot be read", InvalidTranscript):
            messages += parse_message(value)
    return name_tools(messages)


def match_results(messages: Sequence[TranscriptMessage]) -> dict[tuple[int, int], int]:
    """Return the index of the result of each tool call, by the indexes of its message and of the call in it.

    Some tools repeat the ids of calls. Then the results after calls with the same id answer the last of these calls, in
    their order. A call without a result before the next call with its id has none.
    """
    matches: dict[tuple[int, int], int] = {}
    calls: dict[str, list[tuple[int, int]]] = {}
    results: dict[str, list[int]] = {}

    def close(id_: str) -> None:
        called, answered = calls.pop(id_, []), results.pop(id_, [])
        matches.update(zip(called[-len(answered) :] if answered else (), answered, strict=False))

    for index, message in enumerate(messages):
        if message.answers in calls:
            results.setdefault(message.answers, []).append(index)
        for position, call in enumerate(message.tool_calls):
            if call.id in results:
                close(call.id)
            calls.setdefault(call.id, []).append((index, position))
    for id_ in list(calls):
        close(id_)
    return matches


def name_tools(messages: Sequence[TranscriptMessage]) -> tuple[TranscriptMessage, ...]:
    """Return the messages, with the tool's name in results that have only the id of the tool call."""
    tools = {
        result: messages[index].tool_calls[position].tool
        for (index, position), result in match_results(messages).items()
    }
    return tuple(
        replace(message, name=tools[index]) if not message.name and index in tools else message
        for index, message in enumerate(messages)
    )


def render_messages(messages: Sequence[TranscriptMessage], *, reasoning: bool) -> Iterator[str]:
    """Yield the text of each message, with its number in the transcript."""
    for number, message in enumerate(messages, 1):
        yield message.render(number, reasoning=reasoning)
