"""The texts that a model and people read about a unit: the question, the material and the messages.

Texts of the game stand between tags with a code that depends on all of them, so no text can contain a tag that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from runner.analysis.analyzer import Analyzer
from runner.analysis.units import Unit, UnitMessage
from runner.base.hashing import tagged_hash
from runner.game.prompts.sandbox import SandboxedTemplate

_SUBJECTS = {
    "game": "the whole game",
    "agent": "the messages of {name}",
    "channel": "the messages of {name} in one channel",
    "message": "one message of {name}",
    "pair": "two messages, an earlier one and the later one of {name}",
}
_HEADINGS = {
    "game": "The messages of the game, in order",
    "agent": "The messages of all channels of {name}, in order",
    "channel": "The messages of the channel, in order",
    "message": "The message",
    "pair": "The two messages",
}


def render_question(analyzer: Analyzer, unit: Unit) -> str:
    """Return the question about a unit, as a model and people read it.

    Raises:
        TemplateFailedError: the question fails with the variables of this unit.
    """
    return _template(f"{analyzer.name}.question", analyzer.file.question).render(_question_variables(unit))


def render_instructions(analyzer: Analyzer, unit: Unit) -> str:
    """Return the instructions about a unit for a model, without the answers. They have neither label nor verdict.

    Raises:
        TemplateFailedError: the template or the question fails with the variables of this unit.
    """
    texts = [message.text for message in (*unit.context, *unit.messages)]
    code = tagged_hash("analysis tags", [unit.id, texts, {k: str(v) for k, v in unit.columns.items()}])[:6]
    question = _question_variables(unit)
    name = question["agent_name"]
    variables = {
        **question,
        "question": render_question(analyzer, unit),
        "code": code,
        "subject": _SUBJECTS[unit.kind].format(name=name),
        "heading": _HEADINGS[unit.kind].format(name=name),
        "material": "\n".join(_tagged("material", name, text, code) for name, text in column_texts(unit)),
        "context": _transcript(unit.context, code),
        "transcript": _transcript(unit.messages, code),
    }
    return _template(analyzer.name, analyzer.template).render(variables).strip()


def column_texts(unit: Unit) -> Iterable[tuple[str, str]]:
    """Yield the name and the text of each column of the datapoint; listed answers are lines with their letters."""
    for name, value in unit.columns.items():
        if isinstance(value, Mapping):
            yield name, "\n".join(f"{letter}) {text}" for letter, text in value.items())
        elif value is not None:
            yield name, str(value)


def _question_variables(unit: Unit) -> dict[str, str]:
    """Return the variables of questions; see `analyzer.QUESTION_VARIABLES`."""
    return {
        "agent": unit.agent or "",
        "agent_name": unit.agent_name or "",
        "role": unit.role or "",
        "stance": unit.stance or "",
        "position": _position(unit),
        "channel": unit.channel or "",
        "round": "" if unit.round is None else str(unit.round),
    }


def _position(unit: Unit) -> str:
    """Return the agent's stance as a phrase."""
    answers = unit.columns.get("answers")
    if unit.stance is None:
        return ""
    if isinstance(answers, Mapping) and unit.stance in answers:
        return f"answer {unit.stance} is right ({answers[unit.stance]})"
    return {
        "accept": "the verdict must be to accept, because the solution or claim is right",
        "reject": "the verdict must be to reject, because the solution or claim is wrong",
    }.get(unit.stance, unit.stance)


def _transcript(messages: Iterable[UnitMessage], code: str) -> str:
    return "\n".join(
        _tagged("message", f"{message.name}, round {message.round}, channel {message.channel}", message.text, code)
        for message in messages
    )


def _tagged(tag: str, name: str, text: str, code: str) -> str:
    return f'<{tag}-{code} of="{name}">\n{text.strip(chr(10))}\n</{tag}-{code}>'


@lru_cache(maxsize=64)
def _template(name: str, source: str) -> SandboxedTemplate:
    return SandboxedTemplate(name, source)
