"""Warn about prompts that reveal the answer or the provers' stance to agents that should find it themselves.

`runner.rollouts.information_flow` checks that no prompt depends on the label itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.text import comma_join
from runner.game.prompts.chat import chat_messages
from runner.game.prompts.templates import own_variables
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, Round
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.selection import spread_evenly
from runner.spec.loader import Spec

MAX_PER_LABEL = 250
"""Maximum number of datapoints of each label whose columns are compared."""
MAX_RENDERED_POINTS = 10
"""Maximum number of datapoints whose templates are rendered with both stances."""
MIN_PER_LABEL = 8
"""Minimum number of datapoints with each label. With fewer, a column can agree with the labels by chance."""
MIN_PER_LABEL_FOR_WORDS = 12
"""The same minimum for words, because a text has many of them."""
_WORD = re.compile(r"[^\W_]+")


def revealed_labels(spec: Spec) -> Iterator[str]:
    """Warn about each column that a template uses and that tells the label of every datapoint."""
    groups = [[point for point in spec.dataset.datapoints if point.label == label] for label in (0, 1)]
    points = [spread_evenly(group, MAX_PER_LABEL) for group in groups]
    reasons: dict[str, str | None] = {}
    for agent, template in _templates(spec):
        for column in sorted(spec.prompts.variables[template] & set(spec.dataset.columns)):
            if column not in reasons:
                reasons[column] = _explain_link(*([point.columns[column] for point in group] for group in points))
            if (reason := reasons[column]) is not None:
                yield (
                    f"{spec.prompts.variable_place(template, column)}: {agent} sees the column {column!r}, which "
                    f"reveals the label: {reason}; remove the variable if {agent} must find the label itself"
                )


def _templates(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield each template that the run renders, as its agent and its name."""
    judges = spec.protocol.verifier_names
    for template in spec.prompts.sources:
        agent = template.partition(".")[0]
        if spec.rejudged is None or agent in judges:
            yield agent, template


def _explain_link(wrong: Sequence[Any], right: Sequence[Any]) -> str | None:
    """Return how a column tells the label of every datapoint; None if it does not, or if that may be chance."""
    if min(len(wrong), len(right)) < MIN_PER_LABEL:
        return None
    texts = [{str(value) for value in group} for group in (wrong, right)]
    if texts[0].isdisjoint(texts[1]) and len(texts[0] | texts[1]) * 4 <= len(wrong) + len(right):
        return "no value occurs with both labels"
    if all(isinstance(value, int | float) for value in (*wrong, *right)):
        is_separated = max(wrong) < min(right) or max(right) < min(wrong)
        return "all its numbers are larger with one label than with the other" if is_separated else None
    return _explain_words(wrong, right)


def _explain_words(wrong: Sequence[Any], right: Sequence[Any]) -> str | None:
    if min(len(wrong), len(right)) < MIN_PER_LABEL_FOR_WORDS:
        return None
    for group, others in ((wrong, right), (right, wrong)):
        shared = frozenset.intersection(*map(_words, group))
        if shared and shared - frozenset().union(*map(_words, others)):
            return "all its texts with one label have a word that no text with the other label has"
    return None


def _words(value: Any) -> frozenset[str]:
    return frozenset(_WORD.findall(str(value).casefold()))


def revealed_stances(spec: Spec) -> Iterator[str]:
    """Warn about each verifier's template whose text depends on a stance that differs between games."""
    protocol = spec.protocol
    if not protocol.prover_names:
        return
    for agent, template in _templates(spec):
        if agent not in protocol.verifier_names or "stance" not in spec.prompts.variables[template]:
            continue
        points = spread_evenly(spec.dataset.datapoints, MAX_RENDERED_POINTS)
        if any(_depends_on_stance(spec, agent, template, point) for point in points):
            yield (
                f"{spec.prompts.variable_place(template, 'stance')}: {agent} learns which verdict the provers argue "
                "for in this game; remove `stance` if it must judge their messages without knowing this"
            )


def _depends_on_stance(spec: Spec, agent: str, template: str, point: Datapoint) -> bool:
    format_, agents = spec.experiment.decision_format, spec.experiment.agents
    texts = {
        spec.prompts.render(
            template,
            own_variables(
                spec.protocol, agent, prover_stance=stance, round_=spec.protocol.first_active_round(agent) or 0,
                max_response_words=agents[agent].max_response_words, accept=format_.accept, reject=format_.reject,
                confidence_marker=format_.confidence,
            ),
            point.columns,
        )
        for stance in (0, 1)
    }  # fmt: skip
    return len(texts) > 1


def revealed_speakers(spec: Spec) -> Iterator[str]:
    """Warn about each verifier that can tell which of several provers with different stances was drawn."""
    protocol = spec.protocol
    if not protocol.samples_stance or spec.rejudged is not None:
        return
    for number, step in enumerate(protocol.file.cycle):
        drawn = [name for name in step.speak if name in protocol.prover_names] if step.draw == "one" else []
        if len({protocol.default_stance(name) for name in drawn}) < 2:
            continue
        for judge in protocol.verifier_names:
            if len({str(_heard_text(protocol, judge, name, step.speak)) for name in drawn}) > 1:
                yield (
                    f"{protocol.place(f'cycle.{number}')}: {judge} can tell which of {comma_join(drawn)} was drawn, "
                    "and so what the speaker argues for, by its name or channel; let all of them speak in the same "
                    "channels, and set `anonymous: true` for each"
                )


def _heard_text(protocol: Protocol, judge: str, speaker: str, channels: Mapping[str, Sequence[str]]) -> object:
    """Return the chat of a verifier after a message of one speaker, whose text does not depend on the speaker."""
    text = "a message"
    messages = [Message(channel, speaker, text) for channel in channels[speaker]]
    return chat_messages(protocol, judge, [Round({speaker: text}, messages)], round_=1, system="")
