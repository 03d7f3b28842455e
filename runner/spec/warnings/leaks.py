"""Warn about prompts that reveal the answer or the provers' stance to agents that should find it themselves.

`runner.rollouts.information_flow` checks that no prompt depends on the label itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from runner.base.text import comma_join
from runner.game.prompts.chat import chat_messages
from runner.game.prompts.templates import own_variables
from runner.game.protocols.ballot import ANSWERS, CORRECT, INCORRECT
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
MIN_PRIVATE_LENGTH = 20
"""Minimum length of the texts of a private column that other texts do not contain by chance."""
_WORD = re.compile(r"[^\W_]+")


def revealed_labels(spec: Spec) -> Iterator[str]:
    """Warn about each column that a template uses and that tells the label or right answer of every datapoint."""
    fact, explain, excluded = "label", _explain_label, frozenset[str]()
    if spec.protocol.lists_answers:
        fact, explain, excluded = "right answer", _explain_answer, frozenset({ANSWERS})
    reasons: dict[str, str | None] = {}
    for agent, template in _templates(spec):
        if agent in spec.protocol.prover_names and spec.protocol.agent_spec(agent).stance in (CORRECT, INCORRECT):
            continue  # the stance tells the agent whether its answer is right
        for column in sorted(spec.prompts.variables[template] & set(spec.dataset.columns) - excluded):
            if column not in reasons:
                reasons[column] = explain(column, spec.dataset.datapoints)
            if (reason := reasons[column]) is not None:
                yield (
                    f"{spec.prompts.variable_place(template, column)}: {agent} sees the column {column!r}, which "
                    f"reveals the {fact}: {reason}; remove the variable if {agent} must find the {fact} itself"
                )


def _explain_label(column: str, datapoints: Sequence[Datapoint]) -> str | None:
    """Return how a column tells the label of every datapoint; None if it does not, or if that may be chance."""
    groups = [[point for point in datapoints if point.label == label] for label in (0, 1)]
    return _explain_link(
        *([point.columns[column] for point in spread_evenly(group, MAX_PER_LABEL)] for group in groups)
    )


def _explain_answer(column: str, datapoints: Sequence[Datapoint]) -> str | None:
    """Return how a column tells the right answer of every datapoint; None if it does not, or if that may be chance."""
    labeled = [point for point in datapoints if point.answers is not None and point.answers.right]
    points = spread_evenly(labeled, 2 * MAX_PER_LABEL)
    if len(points) < MIN_PER_LABEL:
        return None
    ballots = [point.answers for point in points if point.answers is not None]
    rights = [frozenset(ballot.right or ()) for ballot in ballots]
    mentions = [
        _mentioned_answers(point.columns[column], ballot.texts) for point, ballot in zip(points, ballots, strict=True)
    ]
    if all(names and names <= right for names, right in zip(mentions, rights, strict=True)):
        return "it has the text of a right answer of every datapoint, and of no wrong one"
    counts = [len(ballot.texts) for ballot in ballots]
    if all(names == {*range(n)} - right for names, n, right in zip(mentions, counts, rights, strict=True)):
        return "it has the text of all wrong answers of every datapoint, and of no right one"
    values = [str(point.columns[column]) for point in points]
    count = len(set(values))
    does_vary = len(points) - max(Counter(rights).values()) >= MIN_PER_LABEL
    if does_vary and count * 4 <= len(points) and len(set(zip(values, rights, strict=True))) == count:
        return "all datapoints with the same value have the right answer in the same place"
    return None


def _mentioned_answers(value: Any, texts: Sequence[str]) -> frozenset[int]:
    """Return the answers whose words occur in a value, without those that are part of another such answer."""
    text = _spaced_words(value)
    words_of = {index: words for index, answer in enumerate(texts) if (words := _spaced_words(answer)) in text}
    return frozenset(
        i for i, words in words_of.items() if not any(words in other != words for other in words_of.values())
    )


def _spaced_words(value: Any) -> str:
    """Return the words of a text between spaces, or the whole text if it has no words."""
    text = str(value).casefold()
    return f" {' '.join(_WORD.findall(text)) or text.strip()} "


def revealed_private_columns(spec: Spec) -> Iterator[str]:
    """Warn about each column that a template uses and that repeats a column that its agent must not see."""
    points = spread_evenly(spec.dataset.datapoints, MAX_PER_LABEL)
    for agent, template in _templates(spec):
        hidden = spec.protocol.hidden_columns(agent) & set(spec.dataset.columns)
        used = spec.prompts.variables[template] & set(spec.dataset.columns) - hidden
        for column, private in product(sorted(used), sorted(hidden)):
            if _repeats([point.columns[column] for point in points], [point.columns[private] for point in points]):
                yield (
                    f"{spec.prompts.variable_place(template, column)}: {agent} sees the column {column!r}, which has "
                    f"the text of {private!r} in every datapoint, and {agent} must not see {private!r}; remove the "
                    "variable, or make the column private too"
                )


def _repeats(values: Sequence[Any], private: Sequence[Any]) -> bool:
    """Return whether each value has the text of the private value, and this cannot be chance."""
    for value, hidden in zip(values, private, strict=True):
        text, hidden_text = _spaced_words(value), _spaced_words(hidden)
        if hidden_text not in text or (len(hidden_text) < MIN_PRIVATE_LENGTH and hidden_text != text):
            return False
    is_long = any(len(str(hidden)) >= MIN_PRIVATE_LENGTH for hidden in private)
    return is_long or (len(private) >= MIN_PER_LABEL and len(set(map(str, private))) > 1)


def _templates(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield each template that the run renders, as its agent and its name."""
    judges = spec.protocol.verifier_names
    for template in spec.prompts.sources:
        agent = template.partition(".")[0]
        if spec.rejudged is None or agent in judges:
            yield agent, template


def _explain_link(wrong: Sequence[Any], right: Sequence[Any]) -> str | None:
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
                max_response_words=agents[agent].max_response_words, decision_format=format_,
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


def revealed_right_provers(spec: Spec) -> Iterator[str]:
    """Warn about each prover that argues for a right, or a wrong, answer in every game, and that a judge can tell."""
    protocol = spec.protocol
    is_varied = protocol.parameters.randomize_prover_stance or spec.experiment.stances or protocol.exchanges_stances
    if spec.rejudged is not None or (is_varied and protocol.may_exchange_answers):
        return
    stances = {name: protocol.agent_spec(name).stance for name in protocol.prover_names}
    for name, stance in stances.items():
        others = [other for other in stances if {stance, stances[other]} == {CORRECT, INCORRECT}]
        judges = [judge for judge in protocol.verifier_names if _can_tell(protocol, judge, name, others)]
        if stance in (CORRECT, INCORRECT) and judges:
            hint = "set protocol.randomize_prover_stance=true, or `stances: both`"
            yield (
                f"{protocol.place(f'agents.{name}')}: {name} argues for a {'right' if stance == CORRECT else 'wrong'} "
                f"answer in every game, and {comma_join(judges)} can tell its messages from others, and so learn which "
                "answers are right without judging the arguments; "
                + (hint if protocol.may_exchange_answers else "use the stances correct and incorrect, which alternate")
            )


def _can_tell(protocol: Protocol, judge: str, prover: str, others: Sequence[str]) -> bool:
    """Return whether a verifier hears a prover and knows that it is not one of `others`, by its name or its turn."""
    visible = protocol.visible_channels(judge)
    steps = [step for step in protocol.file.cycle if not set(step.speak.get(prover, ())).isdisjoint(visible)]
    for step in steps:
        drawn = [name for name in (prover, *others) if step.draw == "one" and name in step.speak]
        texts = [str(_heard_text(protocol, judge, name, step.speak)) for name in drawn]
        if not any(text == texts[0] for text in texts[1:]):
            return True
    return False
