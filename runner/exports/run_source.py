"""A finished run as other formats ask for it: its games with the chats that were sent, its numbers, its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision, stance_word
from runner.models.interface import SampleKey
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.results.manifest import AgentRow, Manifest, Status
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_games import AnsweredRequest
from runner.rollouts.rollout import CONFIDENCE, Call, Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.spec.paired_design import exchanged


class ChatLine(NamedTuple):
    """A message of a chat, and the model that wrote it, where an agent of this run did."""

    message: ChatMessage
    model: str | None


CLOCK_SKEW_MS = 60_000
"""How far a server's clock may be behind; an answer that is older than its run comes from a cache or a replay."""


def started_ms(manifest: Manifest) -> float:
    """Return when a run began, in milliseconds since 1970."""
    return datetime.fromisoformat(manifest.started_at).timestamp() * 1000


def dataset_path(manifest: Manifest, plan: Plan) -> str:
    """Return where the run found its dataset: a path in its repository, or a Hub dataset; else the run's own copy."""
    source = (manifest.sources or {}).get("dataset") or {}
    path = source.get("path")
    return str((source.get("repository") if path in (None, ".") else path) or plan.spec.experiment.dataset.path)


class ExportedTurn(NamedTuple):
    """An answer in a game, with its chat and its times in milliseconds since 1970."""

    call: Call
    messages: Sequence[ChatMessage]
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class ExportedGame:
    """A rollout, what was asked in it, and who played it."""

    rollout: Rollout
    requests: Sequence[AnsweredRequest]
    cast: Mapping[str, AgentRow]
    """The agents by seat, each with the model that played there in this game."""
    judged: str | None = None
    """The agent who judges what others have said in another run; it has not said its own earlier messages."""
    started_ms: float = 0.0
    """Start of the run."""
    created_ms: Mapping[SampleKey, float] = field(default_factory=dict)
    """Times of the answers, if their servers sent them."""

    def turns(self) -> list[ExportedTurn]:
        """Return every answer with its times: the server's, or else as if each came right after the one before."""
        requests = {(r.sample.round, r.sample.agent, r.sample.attempt, r.sample.vote): r for r in self.requests}
        turns: list[ExportedTurn] = []
        for call in self.rollout.calls:
            request = requests.get((call.round, call.agent, call.attempt, call.vote))
            if not call.is_answer or request is None:
                continue
            previous = turns[-1].end_ms if turns else self.started_ms
            start = self.created_ms.get(request.sample, previous)
            turns.append(ExportedTurn(call, request.messages, start, start + (call.latency_ms or 0.0)))
        return turns

    def chat(self, agent: str) -> list[ChatLine]:
        """The last chat that was sent for an agent, with the answer that counted: the agent's whole game.

        Of several votes that is the one taken. Empty where the agent was not asked.
        """
        asked = [request for request in self.requests if request.sample.agent == agent]
        if not asked:
            return []
        last = asked[-1]
        answer = self._answer(last.sample)
        model = self.cast[agent]["model"]
        earlier = None if agent == self.judged else model
        said = [ChatLine(m, earlier if m["role"] == "assistant" else None) for m in last.messages]
        return said if answer is None else [*said, ChatLine({"role": "assistant", "content": answer}, model)]

    def _answer(self, last: SampleKey) -> str | None:
        """What an agent answered in the round of its last sample; None where no text came.

        All answers of a round were asked for by one chat. The round has the one that counted; in a round that a
        failure cut off it is the last.
        """
        calls = [call for call in self.calls(last.agent) if call.round == last.round and call.raw_message is not None]
        rounds = self.rollout.rounds
        counted = rounds[last.round].raw.get(last.agent) if last.round < len(rounds) else None
        if any(call.raw_message == counted for call in calls):
            return counted
        last_ones = (c.raw_message for c in calls if (c.attempt, c.vote) == (last.attempt, last.vote))
        return next(last_ones, None)

    def said(self) -> Iterator[dict[str, Any]]:
        """The whole game as one conversation: every message headed by its round, sender and channel.

        What was delivered to no one, as a verdict is not, stands there as it was written.
        """
        asked = max((call.round for call in self.calls(self.judged)), default=-1) if self.judged else -1
        for number, played in enumerate(self.rollout.rounds):
            heard = [(m.agent, m.channel, m.text) for m in played.messages if m.text]
            spoke = {agent for agent, _, _ in heard}
            alone = [(agent, None, text) for agent, text in played.raw.items() if agent not in spoke]
            for agent, channel, text in (*heard, *alone):
                where = "to no one" if channel is None else f"in {channel}"
                is_known = agent != self.judged or number == asked
                yield {
                    "role": "assistant",
                    "content": f"[round {number}, {agent} {where}]\n{text}",
                    **({"model": self.cast[agent]["model"]} if is_known else {}),
                    "metadata": {"round": number, "agent": agent, "channel": channel},
                }

    def calls(self, agent: str) -> list[Call]:
        """The calls of one agent, failed ones too."""
        return [call for call in self.rollout.calls if call.agent == agent]

    @property
    def verdict(self) -> str | None:
        """`accept` or `reject`; None where there is none."""
        rollout = self.rollout
        return stance_word(Decision(rollout.decision)) if rollout.outcome == Outcome.DECIDED else None

    @property
    def facts(self) -> dict[str, Any]:
        """Which play of its datapoint it is, and how its verdict came about; what it has not is left out.

        Decisions are numbers, as in the run's tables: 0 reject, 1 accept, 2 none.
        """
        rollout, job = self.rollout, self.rollout.job
        found = {
            "stance": rollout.stance if job.stance is None else job.stance,
            "swapped": job.swapped,
            "stances_exchanged": job.stances_exchanged,
            "votes": None if rollout.votes is None else list(rollout.votes),
            "verdicts": None if rollout.verdicts is None else [one.to_json() for one in rollout.verdicts],
            **{name: getattr(rollout, name) for name in CONFIDENCE},
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def label(self) -> str:
        """What is right.

        Raises:
            UsageError: the dataset's owner keeps it, and the formats that ask for it have no place for that.
        """
        label = self.rollout.job.datapoint.label
        if label is None:
            raise UsageError("the run has no labels: the owner of its dataset keeps them, and this format needs them")
        return stance_word(Decision(label))


@dataclass(frozen=True)
class RunSource:
    """A finished run, to be written in another format."""

    folder: RunFolder
    manifest: Manifest
    plan: Plan
    metrics: Sequence[Mapping[str, Any]]
    """The rows of `metrics.json`."""
    interval: str
    """How its intervals were made."""
    stopped: str | None = None
    """Of a run that stops when it is decided: what came of it."""

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Of a run's folder.

        Raises:
            UsageError: the run is not finished, is a training run, or plays trees.
        """
        manifest = folder.manifest()
        if manifest.status not in (Status.DONE, Status.INCOMPLETE):
            raise UsageError(
                f"run {folder.run_id} is {manifest.status.value}; resume it with nip-run {folder.path}, then export it"
            )
        plan = played_plan(folder)
        if plan.shape is not None:
            raise UsageError(
                f"{folder.run_id} holds trees of responses, whose branches share rounds; these formats hold single "
                "games. Export single games, or the trees with --format trl --method dpo"
            )
        summary = folder.read_metrics()
        return cls(
            folder, manifest, plan, summary["metrics"], summary["interval"], summary.get("until", {}).get("note")
        )

    @property
    def benchmark(self) -> str:
        return self.manifest.benchmark

    def agent(self, name: str) -> AgentRow:
        """An agent by its name.

        Raises:
            UsageError: there is none.
        """
        for row in self.manifest.agents:
            if row["agent"] == name:
                return row
        names = comma_join(row["agent"] for row in self.manifest.agents)
        raise UsageError(f"--subject {name}: {self.folder.run_id} has no such agent; it has {names}")

    def subject(self, name: str | None, format_: str) -> AgentRow:
        """The agent whose model a record of one model is of.

        Raises:
            UsageError: none is named, or there is no such agent.
        """
        if name is None:
            models = comma_join(f"{row['agent']} ({row['model']})" for row in self.manifest.agents)
            raise UsageError(
                f"--format {format_} holds one model, and a game has one for each agent: {models}. Name whose result "
                "this is: --subject AGENT"
            )
        return self.one_model(name)

    def one_model(self, name: str) -> AgentRow:
        """An agent whose seat one model group has in all games.

        Raises:
            UsageError: there is none of this name, or players have exchanged their seats.
        """
        row, seats = self.agent(name), self.plan.seats or ()
        groups = {seat: self.agent(seat)["model_group"] for seat in seats}
        if name in seats and len(set(groups.values())) > 1:
            others = comma_join(row["agent"] for row in self.manifest.agents if row["agent"] not in seats)
            raise UsageError(
                f"--subject {name}: in half of the games of {self.folder.run_id} {' and '.join(seats)} have exchanged "
                f"their models ({' and '.join(groups.values())}: `seats: swap`). Its numbers are those of both, and a "
                f"record of one model cannot have them. Name another agent ({others}); or export games, each with its "
                "own models: --format scout, or inspect without --subject"
            )
        return row

    @cached_property
    def _casts(self) -> dict[bool, dict[str, AgentRow]]:
        """The agents by seat, with the models that play there, by whether seats are swapped."""
        rows = {row["agent"]: row for row in self.manifest.agents}
        swapped = exchanged(rows, self.plan.seats)
        return {
            False: rows,
            True: {seat: {**swapped[seat], "agent": seat, "role": rows[seat]["role"]} for seat in rows},
        }

    @cached_property
    def _players(self) -> dict[bool, dict[str, str]]:
        names = {row["agent"]: row["agent"] for row in self.manifest.agents}
        return {False: names, True: exchanged(names, self.plan.seats)}

    @property
    def exchange(self) -> str | None:
        """In words, who has exchanged seats; None where nobody has."""
        seats = self.plan.seats
        return None if seats is None else f"in half of the games {' and '.join(seats)} have exchanged their players"

    @property
    def provenance(self) -> dict[str, str]:
        """In words, what is not as in a run that plays each game alike to its planned end; by what it is about."""
        manifest = self.manifest
        found = {"seats": self.exchange, "until": self.stopped}
        if manifest.rejudge_of is not None:
            found["debates_of"] = manifest.rejudge_of.run_id
        return {name: text for name, text in found.items() if text is not None}

    @property
    def unsaid(self) -> list[str]:
        """What was said in the games, and stands in no chat."""
        found = []
        if self.manifest.rejudge_of is not None:
            found.append(f"who asked the questions in the debates of {self.manifest.rejudge_of.run_id}: its own judge")
        if self.plan.spec.experiment.votes > 1:
            found.append("the answers of votes that were not taken; what each voted stands there")
        if self.plan.spec.experiment.rejudge is not None and self.plan.spec.experiment.rejudge.verdict == "each":
            found.append("the answers of verdicts on the way; what each verdict was stands there")
        return found

    def player(self, game: ExportedGame, seat: str) -> str:
        """The entry of `agents` that plays in a seat of a game: it has the model."""
        return self._players[bool(game.rollout.job.swapped)][seat]

    @property
    def verifier(self) -> AgentRow:
        return next(row for row in self.manifest.agents if row["role"] == "verifier")

    def metric(self, name: str) -> Mapping[str, Any] | None:
        """A metric of the whole game; None where it has no value."""
        rows = (row for row in self.metrics if row["agent"] is None and row["metric"] == name)
        return next((row for row in rows if row["value"] is not None), None)

    def prompt(self, agent: str) -> str:
        """The template of an agent, as the run has it."""
        return self.plan.spec.prompts.sources[agent]

    def columns(self, rollout: Rollout) -> dict[str, Any]:
        """The columns of a rollout's datapoint."""
        return dict(rollout.job.datapoint.columns)

    def games(self) -> Iterator[ExportedGame]:
        """Every finished game in the order of the plan, those that were lost in transport too."""
        judged = None if self.manifest.rejudge_of is None else self.plan.spec.protocol.verifier_name
        began = started_ms(self.manifest)
        with closing(Reconstructor(self.folder, self.plan)) as found:
            for rollouts, requests in found.with_answered():
                times = {request.sample: found.created_ms(request.sample) for request in requests}
                created = {sample: time for sample, time in times.items() if time and time >= began - CLOCK_SKEW_MS}
                for rollout in rollouts:
                    yield ExportedGame(
                        rollout, requests, self._casts[bool(rollout.job.swapped)], judged, began, created
                    )


def generation_options(settings: ModelSettings) -> dict[str, Any]:
    """What was asked of a model beside its messages, where the spec says it."""
    found = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_completion_tokens or settings.max_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}
