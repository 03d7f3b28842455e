"""The parts of a finished run's games that an analyzer asks about, in the order of the run.

A unit's id is readable and stable: the rollout's id, then the agent, the channel and the round, as far as its kind has
them. Two units of one group of datapoints are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.analysis.analyzer import Analyzer, Condition, UnitKind
from runner.base.errors import UsageError
from runner.game.protocols.ballot import ANSWERS
from runner.game.protocols.protocol import Protocol, stance_word, verdict_word
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.rollouts.transcript import shown_columns, shown_decision, shown_label, shown_stances
from runner.runs.finished.reconstruction import Reconstructor, played_plan


class UnitMessage(NamedTuple):
    """A message of a game, as the members of its channel saw it."""

    agent: str
    """The agent's name in the protocol."""
    name: str
    """The agent's name in the conversation, such as `Expert_1`."""
    channel: str
    round: int
    text: str


@dataclass(frozen=True)
class Unit:
    """A part of a game."""

    id: str
    kind: UnitKind
    rollout_id: str
    datapoint_id: str
    group: str
    """The group of the datapoint."""
    agent: str | None
    agent_name: str | None
    """The agent's name in the conversation."""
    role: str | None
    """`prover` or `verifier`."""
    stance: str | None
    """The verdict or the letter of the answer that the agent argues for."""
    channel: str | None
    round: int | None
    """The round of the message, for messages and pairs."""
    messages: tuple[UnitMessage, ...]
    """The messages that the question is about. `game`: all. `agent`: those of all channels of the agent. `channel`:
    those of the channel up to its first empty round. `message`: one. `pair`: two, the earlier one first."""
    context: tuple[UnitMessage, ...]
    """The messages before, in the channel of the unit, for messages and pairs."""
    columns: Mapping[str, Any]
    """The columns of the datapoint that all agents saw; listed answers map the game's letters to texts."""
    verdict: str | None
    """The verdict of the game. Neither the model nor people see it."""
    label: int | str | None
    """The label of the game, or the letters of the right answers. Neither the model nor people see it."""

    @property
    def own_messages(self) -> tuple[UnitMessage, ...]:
        """The messages of the unit's agent; of a game, all messages; of a pair, the later one."""
        if self.kind in ("message", "pair"):
            return self.messages[-1:]
        return tuple(message for message in self.messages if self.agent in (None, message.agent))


OnLost = Callable[[Rollout], None]


def list_units(
    folder: RunFolder, analyzer: Analyzer, plan: Plan | None = None, on_lost: OnLost = lambda _: None
) -> Iterator[Unit]:
    """Yield the units of a run, including those that are not applicable.

    `plan` is the run's plan, if the caller has loaded it. `on_lost` is called with each game that has no units because
    its calls failed.

    Raises:
        UsageError: the games of the run are in other runs.
        RunError: the records of the run cannot be read.
    """
    manifest = folder.manifest()
    if manifest.has_parts:
        raise UsageError(
            f"{manifest.run_id} is {manifest.kind_name}, and its games are separate runs: analyze one of these runs "
            f"instead, such as {manifest.example_part}"
        )
    plan = plan or played_plan(folder, trusts_manifest=True)
    columns = shown_column_names(plan)
    roles = {role for role in ("prover", "verifier") if role in analyzer.file.applies}
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in reconstructor.rollouts():
            if rollout.outcome == Outcome.TRANSPORT_FAILED:
                on_lost(rollout)
                continue
            units = _GameUnits(plan.spec.protocol, rollout, columns).of_kind(analyzer.file.unit)
            yield from (unit for unit in units if not roles or roles == {unit.role})


def shown_column_names(plan: Plan) -> frozenset[str]:
    """Return the columns of the dataset that the prompts of all agents use, and the one that quotes come from.

    A column that only some agents see may tell what is right, so models and people must not see it.
    """
    protocol, templates = plan.spec.protocol, plan.spec.prompts.variables.items()
    used = {
        agent: {ANSWERS}.union(*(names for template, names in templates if template.partition(".")[0] == agent))
        for agent in protocol.agent_names
    }
    shared = set.intersection(*(names - protocol.hidden_columns(agent) for agent, names in used.items()))
    quotes, checker = protocol.file.quotes, plan.spec.experiment.dataset.checker
    shared |= set() if quotes is None else {quotes.source}
    return frozenset(shared - ({checker.column} if checker is not None else set()))


def why_not_applicable(unit: Unit, analyzer: Analyzer) -> str | None:
    """Return why an analyzer's question does not apply to a unit; None if it applies."""
    return next((_UNMET[name] for name in analyzer.file.applies if not _is_met(name, unit)), None)


_UNMET: Mapping[Condition, str] = {
    "prover": "the agent is not a prover",
    "verifier": "the agent is not a verifier",
    "spoke": "the agent wrote nothing",
    "replied": "no other agent wrote before",
    "has_stance": "the agent argues for nothing",
    "decided": "the game has no verdict",
}


def _is_met(condition: Condition, unit: Unit) -> bool:
    messages = unit.own_messages
    if condition == "replied":
        all_messages = (*unit.context, *unit.messages)
        return bool(messages) and any(m.agent != unit.agent and m.round < messages[-1].round for m in all_messages)
    return {
        "prover": unit.role == "prover",
        "verifier": unit.role == "verifier",
        "spoke": bool(messages),
        "has_stance": unit.stance is not None,
        "decided": unit.verdict is not None,
    }[condition]


class _GameUnits:
    """The units of one game."""

    def __init__(self, protocol: Protocol, rollout: Rollout, columns: frozenset[str]) -> None:
        self._protocol, self._rollout = protocol, rollout
        self._columns = {name: value for name, value in shown_columns(rollout).items() if name in columns}
        self._stances = {
            agent: stance if isinstance(stance, str) else stance_word(stance)
            for agent, stance in shown_stances(protocol, rollout).items()
        }
        decision = shown_decision(rollout) if rollout.outcome == Outcome.DECIDED else None
        self._verdict = None if decision is None else verdict_word(decision)
        self._messages = [
            UnitMessage(
                message.agent, protocol.agent_spec(message.agent).human_name, message.channel, number, message.text
            )
            for number, played in enumerate(rollout.rounds)
            for message in played.messages
            # A judge of a panel gives its verdict in a message.
            if message.text.strip() and message.agent not in played.panel
        ]

    def of_kind(self, kind: UnitKind) -> Iterator[Unit]:
        """Yield the units of a kind."""
        protocol, messages = self._protocol, self._messages
        if kind == "game":
            yield self._unit(kind, messages)
        elif kind == "agent":
            for agent in protocol.agent_names:
                channels = protocol.visible_channels(agent)
                yield self._unit(kind, [m for m in messages if m.channel in channels], agent)
        elif kind == "channel":
            for agent in protocol.agent_names:
                for channel in self._spoken_channels(agent):
                    yield self._unit(kind, self._until_empty_round(channel), agent, channel)
        else:
            for message in messages:
                yield from self._units_of_message(kind, message)

    def _units_of_message(self, kind: UnitKind, message: UnitMessage) -> Iterator[Unit]:
        before = [m for m in self._messages if m.channel == message.channel and m.round < message.round]
        if kind == "message":
            yield self._unit(kind, [message], message.agent, message.channel, before)
            return
        earlier = next((i for i in reversed(range(len(before))) if before[i].agent != message.agent), None)
        if earlier is not None:
            yield self._unit(kind, [before[earlier], message], message.agent, message.channel, before[:earlier])

    def _spoken_channels(self, agent: str) -> list[str]:
        """Return the channels where an agent may write, in the order of the protocol."""
        protocol = self._protocol
        spoken = {channel for step in protocol.steps for channel in step.speak.get(agent, ())}
        return [channel for channel in protocol.visible_channels(agent) if channel in spoken]

    def _until_empty_round(self, channel: str) -> list[UnitMessage]:
        """Return the messages of a channel before its first empty round.

        A round is empty if an agent has its turn to write to the channel, but writes nothing.
        """
        result: list[UnitMessage] = []
        for number, played in enumerate(self._rollout.rounds):
            speakers = self._protocol.speakers(number, self._rollout.job.seed)
            messages = [m for m in self._messages if m.round == number and m.channel == channel]
            if not messages and any(channel in speakers.get(agent, ()) for agent in played.raw):
                break
            result += messages
        return result

    def _unit(
        self,
        kind: UnitKind,
        messages: Sequence[UnitMessage],
        agent: str | None = None,
        channel: str | None = None,
        context: Sequence[UnitMessage] = (),
    ) -> Unit:
        job = self._rollout.job
        spec = None if agent is None else self._protocol.agent_spec(agent)
        number = messages[-1].round if kind in ("message", "pair") else None
        parts = (job.rollout_id, agent, channel, number)
        return Unit(
            id="/".join(str(part) for part in parts if part is not None), kind=kind, rollout_id=job.rollout_id,
            datapoint_id=job.datapoint.id, group=job.datapoint.group, agent=agent,
            agent_name=None if spec is None else spec.human_name, role=None if spec is None else spec.role,
            stance=None if agent is None else self._stances.get(agent), channel=channel, round=number,
            messages=tuple(messages), context=tuple(context), columns=self._columns, verdict=self._verdict,
            label=shown_label(self._rollout),
        )  # fmt: skip
