"""Messages of a transcript, independent of the tool that wrote them, and their text for prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of messages. A result with the old role `function` becomes one with the role `tool`."""


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
        """Return the message as text, with its number in the transcript, counted from 1."""
        heading = f"[{number}] {self.role}" + (f" {self.name}" if self.name else "")
        parts = [f"<reasoning>\n{self.reasoning}\n</reasoning>"] if reasoning and self.reasoning else []
        parts += [self.text] if self.text else []
        parts += [f"-> {call.tool} {call.arguments}" for call in self.tool_calls]
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


def parse_message(value: Any) -> TranscriptMessage:
    """Parse a chat message as OpenAI, Inspect, Scout or Hugging Face session traces write it.

    Raises:
        InvalidTranscript: the value is not such a message.
    """
    if not isinstance(value, dict):
        raise InvalidTranscript("it is not a JSON object")
    role = value.get("role")
    if role not in ROLES:
        raise InvalidTranscript(f"its role is {str(role)[:40]!r}, not one of {', '.join(ROLES)}")
    text, reasoning = _parse_content(value.get("content"))
    for key in ("reasoning_content", "reasoningContent", "reasoning"):
        if isinstance(value.get(key), str):
            reasoning = value[key]
    answers = value.get("tool_call_id", value.get("toolCallId"))
    if role == "function":  # it answers the call of the function with its name
        role, answers = "tool", value.get("name")
    error = value.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str) and error["message"] not in text:
        text = f"{text}\nError: {error['message']}".strip()
    name = value.get("function") or value.get("name") if role == "tool" else value.get("name")
    return TranscriptMessage(
        role=role,
        text=text,
        reasoning=reasoning,
        tool_calls=_parse_tool_calls(value),
        name=name if isinstance(name, str) else "",
        answers=None if answers is None else str(answers),
        id=None if value.get("id") is None else str(value["id"]),
    )


def _parse_content(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning of a message. Images, sounds and files are named, but not included."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise InvalidTranscript("its content is neither a text nor a list")
    texts, reasoning = [], []
    for part in content:
        if not isinstance(part, dict):
            raise InvalidTranscript("a part of its content is not a JSON object")
        kind = str(part.get("type"))
        if kind == "reasoning":
            text = part.get("summary") if part.get("redacted") else part.get("reasoning")
            reasoning.append(str(text or ""))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            texts.append(f"[{kind[:40]}]")
    return "\n".join(filter(None, texts)), "\n".join(filter(None, reasoning))


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
    """Parse a call: of a function, or with OpenAI's type `custom`, whose `input` is any text."""
    if not isinstance(call, dict):
        raise InvalidTranscript("a tool call is not a JSON object")
    function, custom = call.get("function"), call.get("custom")
    tool, arguments = function, call.get("arguments")
    if isinstance(function, dict):
        tool, arguments = function.get("name"), function.get("arguments")
    elif isinstance(custom, dict):
        tool, arguments = custom.get("name"), custom.get("input")
    if not isinstance(tool, str):
        raise InvalidTranscript("a tool call names no function")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return ToolUse(str(call.get("id") or ""), tool, arguments)


def parse_messages(values: Any) -> tuple[TranscriptMessage, ...]:
    """Parse a list of messages.

    Raises:
        InvalidTranscript: the value is not a list of messages; the error names the message.
    """
    if not isinstance(values, list):
        raise InvalidTranscript("it has no list of messages")
    messages = []
    for number, value in enumerate(values, 1):
        try:
            messages.append(parse_message(value))
        except InvalidTranscript as error:
            raise InvalidTranscript(f"message {number} cannot be read: {error}") from error
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
