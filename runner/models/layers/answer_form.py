"""The form of an expected answer: fields that people fill in or a JSON schema requests, and the resulting text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import orjson

from runner.base.errors import InvalidResponseError, UsageError, errors_as
from runner.base.question_queue import FormField
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.answer_verdicts import ANSWER_MARKER
from runner.game.protocols.ballot import FIRST_ANSWER
from runner.game.protocols.confidence import lenient_pattern
from runner.game.protocols.protocol import Decision
from runner.models.interface import ResponseHint
from runner.models.settings import ModelSettings

NO_VERDICT = "No verdict yet"
DECISION = "decision"
"""The property of a JSON answer with the verdict."""
_CHOSEN = ("verdict", "confidence")
"""The fields of a form whose values are chosen from a list in a JSON answer."""
_PERCENTAGES = [f"{percentage}%" for percentage in range(101)]


def form_fields(hint: ResponseHint) -> tuple[FormField, ...]:
    """Return the fields of the form for an answer. A required verdict comes first, so that it has the focus."""
    verdict = _verdict_field(hint)
    is_text_needed = verdict is None or hint.answer_marker == ANSWER_MARKER or not hint.must_decide
    texts = [FormField("notes", f"Private notes (before {hint.scratchpad})", required=False)] if hint.scratchpad else []
    if hint.number is None:
        labels = hint.headers or ("Message" if is_text_needed else "Reasons (optional)",)
        texts += [FormField(f"text{index}", label, required=is_text_needed) for index, label in enumerate(labels)]
    decision = [] if verdict is None else [verdict]
    if hint.confidence is not None:
        decision.append(FormField("confidence", f"{hint.confidence} (with a verdict)", "line", required=False))
    return (*decision, *texts) if verdict is not None and verdict.required else (*texts, *decision)


def _verdict_field(hint: ResponseHint) -> FormField | None:
    """Return the field for a verdict, a choice of an answer or a number; None if the answer is only text."""
    undecided = () if hint.must_decide or hint.answer_marker == ANSWER_MARKER else (NO_VERDICT,)
    if hint.number is not None:
        marker, highest = hint.number
        return FormField("verdict", f"{marker} a number up to {highest}", "line")
    if hint.answer_order is not None:
        letters = ascii_uppercase[: len(hint.answer_order)]
        if hint.form == "answer":
            return _choice(hint.answer_marker, (*letters, *undecided))
        example = ", ".join(f"{letter} ..." for letter in letters)
        return FormField("verdict", f"{hint.answer_marker} {example}", "line", required=not undecided)
    if hint.accept is not None and hint.reject is not None:
        return _choice("Verdict", (hint.accept, hint.reject, *undecided))
    return None


def _choice(label: str, options: tuple[str, ...]) -> FormField:
    default = NO_VERDICT if NO_VERDICT in options else ""
    return FormField("verdict", label, "choice", options, required=not default, default=default)


def answer_text(hint: ResponseHint, values: Mapping[str, str]) -> str:
    """Return the text of an answer, as a model would write it.

    Raises:
        UsageError: a value is missing or not an option.
    """
    verdict = _verdict_line(hint, values)
    fields = [field for field in form_fields(hint) if field.name.startswith("text")]
    texts = [values.get(field.name, "").strip() for field in fields]
    if verdict is None or hint.answer_marker == ANSWER_MARKER:
        for field, text in zip(fields, texts, strict=True):
            if not text:
                raise UsageError(f"write a text: {field.label}")
    if hint.headers:
        texts = [f"{header} {text}" for header, text in zip(hint.headers, texts, strict=True)]
    parts = [text for text in texts if text]
    if verdict is not None:
        parts.insert(0 if hint.answer_marker == ANSWER_MARKER else len(parts), verdict)
    answer = "\n\n".join(parts)
    notes = values.get("notes", "").strip()
    return answer if hint.scratchpad is None else f"{notes}\n\n{hint.scratchpad} {answer}".lstrip()


def _verdict_line(hint: ResponseHint, values: Mapping[str, str]) -> str | None:
    field, value = _verdict_field(hint), values.get("verdict", "").strip()
    if field is None or value == NO_VERDICT or (not value and not field.required):
        return None
    if not value or (field.options and value not in field.options):
        raise UsageError(f"choose one: {_list(field.options)}" if field.options else f"fill in: {field.label}")
    marker = hint.number[0] if hint.number is not None else hint.answer_marker
    line = f"{marker} {value}".lstrip()
    confidence = values.get("confidence", "").strip()
    return f"{line}\n{hint.confidence} {confidence}" if hint.confidence is not None else line


def selected_decision(hint: ResponseHint, values: Mapping[str, str]) -> int | None:
    """Return the code of the verdict that was selected; None if the form has no choice of a verdict."""
    field, value = _verdict_field(hint), values.get("verdict", "")
    if field is None or field.kind != "choice" or hint.answer_marker == ANSWER_MARKER:
        return None
    if value in ("", NO_VERDICT):
        return Decision.NONE
    if hint.answer_order is not None:
        return FIRST_ANSWER + ascii_uppercase.index(value)
    return Decision.ACCEPT if value == hint.accept else Decision.REJECT


def _list(options: Sequence[str]) -> str:
    return ", ".join(f"{number} for {option!r}" for number, option in enumerate(options, 1))


# Answers as JSON


def answer_schema(hint: ResponseHint, max_length: int | None = None) -> dict[str, Any] | None:
    """Return the JSON schema of an answer whose decision is one of the verdicts; None if it chooses no verdict.

    The text comes before the decision, so that the model can reason before it decides. `max_length` is the maximum
    length of each text in characters.
    """
    verdict = _verdict_field(hint)
    if verdict is None or verdict.kind != "choice" or hint.answer_marker == ANSWER_MARKER:
        return None
    options = {"verdict": list(verdict.options), "confidence": _PERCENTAGES}
    limit = {} if max_length is None else {"maxLength": max_length}
    properties = {
        name: {"type": "string", **({"enum": options[field.name]} if field.name in options else limit)}
        for name, field in _properties(hint)
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def advise_on_json(group: str, settings: ModelSettings) -> str:
    """Return advice if answers do not follow their JSON schema."""
    return (
        f"raise models.{group}.{settings.length_limit_key}, since a cut answer is not JSON; if the server ignores JSON "
        f"schemas, remove models.{group}.constrain_decisions"
    )


def read_json_answer(hint: ResponseHint, text: str) -> dict[str, str]:
    """Return the values of the form's fields in a JSON answer.

    Raises:
        InvalidResponseError: the answer is not JSON with these properties, or its decision is not one of the verdicts.
    """
    try:
        answer = orjson.loads(text)
    except ValueError:
        answer = None
    properties = dict(_properties(hint))
    if not isinstance(answer, dict) or not all(isinstance(answer.get(name), str) for name in properties):
        raise InvalidResponseError(
            f"the answer is not a JSON object with the keys {', '.join(properties)}, which constrain_decisions requires"
        )
    options = properties[DECISION].options
    if answer[DECISION] not in options:
        raise InvalidResponseError(f"the decision of the JSON answer must be exactly one of: {_list(options)}")
    return {field.name: answer[name] for name, field in properties.items()}


def render_json_answer(hint: ResponseHint, text: str, format_: DecisionFormat) -> tuple[str, int]:
    """Return a JSON answer as the text that a model would write without a schema, and the code of its decision.

    The text of a verdict in the reasoning is removed, because only the property `decision` decides.

    Raises:
        InvalidResponseError: the answer does not have this form.
    """
    fields = read_json_answer(hint, text)
    free = {name: _without_verdicts(value, format_, hint) for name, value in fields.items() if name not in _CHOSEN}
    with errors_as(InvalidResponseError, "the JSON answer is incomplete", UsageError):
        rendered = answer_text(hint, {**fields, **free})
    decision = selected_decision(hint, fields)
    assert decision is not None
    return rendered, decision


def _without_verdicts(text: str, format_: DecisionFormat, hint: ResponseHint) -> str:
    """Return a text without the markers that a parser would read as a verdict or as a confidence."""
    verdicts = [format_.marker] if hint.answer_order is not None else [format_.accept, format_.reject, format_.marker]
    patterns = [lenient_pattern(marker, whole_words=False) for marker in (*verdicts, format_.confidence)]
    patterns += [re.compile(re.escape(verdict), re.IGNORECASE) for verdict in verdicts]
    for pattern in patterns:
        text = pattern.sub("", text)
    return text


def _properties(hint: ResponseHint) -> Iterator[tuple[str, FormField]]:
    """Yield each property of a JSON answer with its field, in the order of the answer."""
    names = {"verdict": DECISION, "confidence": "confidence", "notes": "notes"}
    text_name = "reasoning" if hint.must_decide else "message"
    for field in sorted(form_fields(hint), key=lambda field: field.name in _CHOSEN):
        number = field.name.removeprefix("text") if len(hint.headers) > 1 else ""
        yield names.get(field.name, f"{text_name}{number}"), field
