"""Compute the values that one finished game adds to the metrics.

Any process may do this. The process that counts the values counts games in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from runner.game.protocols.protocol import Decision, Protocol
from runner.results.answer_games import AnswerVerdictFacts, answer_facts
from runner.results.metric_definitions import METRICS, Source
from runner.rollouts.confidence import is_bound
from runner.rollouts.rollout import Outcome, Rollout, RoundVerdict
from runner.statistics.answer_verdicts import log_score

ORIGINAL_LIMITED = "limited_per_round"
"""The values of the original implementation's `token_limit_proportion`, which differs from nip-run's metric."""

AddedValues = tuple[str | None, str, tuple[float, ...]]
"""An agent, or None for the whole game; a metric; and the metric's values in the order of the rounds."""


class GameVerdict(NamedTuple):
    """The verdict and confidences of a game, for metrics that need those of all games at once."""

    datapoint: str
    group: str
    label: int | None
    decision: int
    swapped: bool | None = None
    stances_exchanged: bool | None = None
    stance: int | None = None
    argued: tuple[int, ...] | None = None
    """The stance of each prover, in the protocol's order; None if each datapoint is played in one form."""
    stated: float | None = None
    logprob: float | None = None
    is_bound: bool = False
    panel: tuple[int, ...] | None = None
    """The verdict of each judge of a panel, in the protocol's order; None without a panel."""
    answers: AnswerVerdictFacts | None = None
    """The verdict on listed answers. Then `label` is 1, and `decision` is 1 if the verdict is right, 0 if wrong."""


class GameMeasurement(NamedTuple):
    """The values that one game adds to the metrics. A game that was lost in transport has only an outcome."""

    outcome: str
    cluster: str
    added: tuple[AddedValues, ...]
    verdict: GameVerdict | None


def measure_game(protocol: Protocol, rollout: Rollout, plugin_metrics: tuple[str, ...] = ()) -> GameMeasurement:
    """Return the values that a game adds to the metrics, including these metrics of plugins."""
    point, outcome = rollout.job.datapoint, rollout.outcome.value
    if rollout.outcome == Outcome.TRANSPORT_FAILED:
        return GameMeasurement(outcome, point.group, (), None)
    return GameMeasurement(
        outcome,
        point.group,
        tuple(_added_values(protocol, rollout, plugin_metrics)),
        _game_verdict(protocol, rollout),
    )


_TRUTH_VALUES = ((0.0,), (1.0,))
"""False and True as the only value of a metric."""


class GameFacts:
    """The facts about one game that its metrics are computed from."""

    __slots__ = ("_protocol", "correct", "decision", "is_accepted", "is_decided", "label", "rollout")

    def __init__(self, protocol: Protocol, rollout: Rollout) -> None:
        self._protocol, self.rollout = protocol, rollout
        self.decision, self.label = rollout.decision, rollout.label
        self.is_decided, self.is_accepted = self.decision != Decision.NONE, self.decision == Decision.ACCEPT
        self.correct: tuple[float, ...] = _TRUTH_VALUES[bool(rollout.correct)] if rollout.is_labelled else ()
        """1.0 if the verdict is right, else 0.0, as the only value; empty without a label."""

    @property
    def rounds(self) -> int:
        """The number of rounds that were played."""
        return len(self.rollout.rounds)

    @property
    def episode_length(self) -> int:
        """The episode length of the original implementation; see the function `episode_length`."""
        return episode_length(self._protocol, self.rollout)

    @property
    def answer_log_score(self) -> tuple[float, ...]:
        """The log score of the verdict's distribution over listed answers, as the only value; empty without one."""
        p_right = None if self.rollout.answers is None else self.rollout.answers.p_right
        return () if p_right is None else (log_score(p_right),)

    @property
    def answer_brier(self) -> tuple[float, ...]:
        """The multi-class Brier score of this distribution, as the only value; empty without one."""
        brier = None if self.rollout.answers is None else self.rollout.answers.brier
        return () if brier is None else (brier,)

    @staticmethod
    def truth(value: bool) -> tuple[float]:
        """Return 1.0 or 0.0 as the only value of a metric."""
        return _TRUTH_VALUES[value]


@dataclass(slots=True)
class AgentFacts:
    """The facts about one agent in one game that its metrics are computed from. Values are in the order of rounds."""

    name: str
    reward: tuple[float, ...]
    """The agent's reward as the only value; empty if it is unknown."""
    retries: Sequence[float]
    calls: Sequence[float]
    """The number of calls for each message."""
    cut: Sequence[float]
    """Whether each message was cut at the token limit."""
    limited: Sequence[float]
    """The values of the original implementation's `token_limit_proportion`."""
    failed_selections: Sequence[float] = ()
    """Whether no candidate was selected, for each message with several candidates."""


class JudgeFacts(NamedTuple):
    """The facts about one judge of a panel in one game that its metrics are computed from."""

    verdict: RoundVerdict
    panel_decision: int
    label: int | None

    @property
    def decision(self) -> int:
        return self.verdict.decision

    @property
    def correct(self) -> tuple[float, ...]:
        """1.0 if the judge's verdict is right, else 0.0, as the only value; empty without a label."""
        return () if self.label is None else _TRUTH_VALUES[self.decision == self.label]

    @property
    def advantage(self) -> tuple[float, ...]:
        """1.0 if only the judge is right, -1.0 if only the panel is, else 0.0; empty without a label."""
        if self.label is None:
            return ()
        return (float((self.decision == self.label) - (self.panel_decision == self.label)),)

    def brier(self, kind: str) -> tuple[float, ...]:
        """Return the Brier score of the judge's P(accept), as the only value; empty without it or without a label."""
        p = getattr(self.verdict, f"confidence_{kind}")
        return () if p is None or self.label is None else ((p - self.label) ** 2,)

    @property
    def agrees(self) -> tuple[float, ...]:
        """1.0 if the judge and the panel have the same verdict, else 0.0; empty if one has none."""
        if Decision.NONE in (self.decision, self.panel_decision):
            return ()
        return _TRUTH_VALUES[self.decision == self.panel_decision]


def _added_values(protocol: Protocol, rollout: Rollout, plugin_metrics: tuple[str, ...]) -> Iterator[AddedValues]:
    facts = GameFacts(protocol, rollout)
    names = tuple(name for name, metric in METRICS.items() if not metric.is_plugin or name in plugin_metrics)
    for name, compute in _metric_functions(Source.GAMES, names, protocol.lists_answers):
        if values := compute(facts):
            yield None, name, values
    for agent_facts in _agent_facts(protocol, rollout):
        for name, compute in _metric_functions(Source.AGENTS, names, protocol.lists_answers):
            if values := compute(agent_facts):
                yield agent_facts.name, name, tuple(values)
        if agent_facts.limited:
            yield agent_facts.name, ORIGINAL_LIMITED, tuple(agent_facts.limited)
    for judge in rollout.panel or ():
        judge_facts = JudgeFacts(judge.verdict, _decision(rollout), rollout.label)
        for name, compute in _metric_functions(Source.JUDGES, names, protocol.lists_answers):
            if values := compute(judge_facts):
                yield judge.agent, name, values


def _decision(rollout: Rollout) -> int:
    return int(rollout.decision) if rollout.outcome == Outcome.DECIDED else int(Decision.NONE)


@cache
def _metric_functions(
    source: Source, names: tuple[str, ...], lists_answers: bool
) -> list[tuple[str, Callable[..., Any]]]:
    """Return the name and function of each of these metrics that is of a source."""
    metrics = [
        METRICS[n] for n in names if METRICS[n].source is source and METRICS[n].applies(lists_answers=lists_answers)
    ]
    return [(metric.name, metric.compute) for metric in metrics if metric.compute is not None]


def _agent_facts(protocol: Protocol, rollout: Rollout) -> Iterator[AgentFacts]:
    lost_answers, padding = rollout.answers_without_round(), (0.0,) * _unplayed_rounds(protocol, rollout)
    is_labelled, rewards = rollout.is_labelled, rollout.rewards
    for agent in protocol.agent_names:
        reward = (float(rewards.get(agent, 0.0)),) if is_labelled or agent in rewards else ()
        retries: list[float] = []
        limited: list[float] = []
        calls: list[float] = []
        cut: list[float] = []
        for played_round in rollout.rounds:
            if played_round.asked is not None and agent not in played_round.asked:
                continue
            # The original implementation counts silent agents too, and no token limit after the last attempt failed.
            retries.append(played_round.retry_counts.get(agent, 0))
            limited.append(played_round.token_limits.get(agent, 0))
            if agent in played_round.raw:
                calls.append(played_round.calls[agent])
                cut.append(played_round.cut[agent])
        if agent in lost_answers:  # an unfinished round has no message, but its calls count
            answers = lost_answers[agent]
            calls.append(len({(call.vote, call.attempt) for call in answers}))
            cut.append(answers[-1].finish_reason == "length")
        retries += padding
        limited += padding
        selections = [played.selections[agent] for played in rollout.rounds if agent in played.selections]
        failed = [float(selection.failed) for selection in selections]
        yield AgentFacts(agent, reward, retries, calls, cut, limited, failed)


def _unplayed_rounds(protocol: Protocol, rollout: Rollout) -> int:
    """Return the number of rounds that an undecided game did not reach. The original implementation counts them as 0.

    The result for a debate that is judged again is 0, since it has no further rounds, and so is that for a panel, which
    may end a game undecided before its last round.
    """
    if protocol.file.panel is not None:
        return 0
    if rollout.outcome != Outcome.NO_DECISION or any(played_round.asked is not None for played_round in rollout.rounds):
        return 0
    return protocol.max_message_rounds - len(rollout.rounds)


def _game_verdict(protocol: Protocol, rollout: Rollout) -> GameVerdict:
    job, point = rollout.job, rollout.job.datapoint
    panel = None if rollout.panel is None else tuple(judge.verdict.decision for judge in rollout.panel)
    decision = _decision(rollout)
    if rollout.answers is not None:
        code = decision if decision == Decision.NONE else int(bool(rollout.correct))
        label = 1 if rollout.is_labelled else None
        return GameVerdict(point.id, point.group, label, code, swapped=job.swapped, answers=answer_facts(rollout))
    verdict = GameVerdict(
        point.id, point.group, rollout.label, _decision(rollout),
        stated=rollout.confidence_stated, logprob=rollout.confidence_logprob,
        is_bound=is_bound(rollout.confidence_note), panel=panel,
    )  # fmt: skip
    if job.stance is None and job.swapped is None:
        return verdict
    prover_stance = point.prover_stance if job.stance is None else job.stance
    argued_stances = (
        protocol.stance(agent, prover_stance) if rollout.stance is None else rollout.stance
        for agent in protocol.prover_names
    )
    stance = None if job.stance is None else rollout.stance
    return verdict._replace(
        swapped=job.swapped, stances_exchanged=job.stances_exchanged, stance=stance, argued=tuple(argued_stances)
    )


def episode_length(protocol: Protocol, rollout: Rollout) -> int:
    """Return the original implementation's episode length.

    It is the number of rounds with a message in the first channel, without the last round of the protocol.
    """
    first = protocol.channel_names[0]
    rounds = rollout.rounds[: protocol.max_message_rounds - 1]
    return sum(any(message.channel == first for message in played_round.messages) for played_round in rounds)
