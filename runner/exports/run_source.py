"""Loads a finished run for exports: its games with the chats as they were sent, its metrics and its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision, label_player, label_word, stance_word, verdict_word
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import AgentRow, Manifest, Status
from runner.results.metrics_file import MetricRow
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_games import AnsweredRequest
from runner.rollouts.rollout import CONFIDENCE_FIELDS, Call, Outcome, Rollout
from runner.rollouts.transcript import shown_columns, shown_label, shown_stances, votes_json
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.spec.paired_design import exchange_players


class ChatLine(NamedTuple):
    """A message of a chat, and the model that wrote it; None if no agent of this run wrote it."""

    message: ChatMessage
    model: str | None


CLOCK_SKEW_MS = 60_000
"""Assumed maximum error of a server's clock. An even older answer comes from a cache or another run."""


def started_ms(manifest: Manifest) -> float:
    """Return the start of a run, in milliseconds since 1970."""
    return datetime.fromisoformat(manifest.started_at).timestamp() * 1000


def dataset_path(manifest: Manifest, plan: Plan) -> str:
    """Return a run's dataset: its path in a repository, the name of a Hub dataset, or else the path in the spec."""
    source = (manifest.sources or {}).get("dataset") or {}
    path = source.get("path")
    return str((source.get("repository") if path in (None, ".") else path) or plan.spec.experiment.dataset.path)


class ExportedTurn(NamedTuple):
    """An answer in a game, with its request and its times in milliseconds since 1970."""

    call: Call
    request: AnsweredRequest
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class ExportedGame:
    """A rollout, its answered requests, and the agents that played it."""

    rollout: Rollout
    requests: Sequence[AnsweredRequest]
    cast: Mapping[str, AgentRow]
    """The agents by role in the protocol, each with the model that played that role in this game."""
    stances: Mapping[str, int | str]
    """The stance of each prover, or the letter of the answer that it argued for."""
    new_judge: str | None = None
    """The agent that judges a debate of another run again; None in other runs.

    The messages of this agent before its verdict were written by the judge of the other run.
    """
    started_ms: float = 0.0
    """Start of the run, in milliseconds since 1970."""
    analyzed_run: str | None = None
    """The run that an analysis is about; None for a game."""

    def turns(self) -> list[ExportedTurn]:
        """Return every answer with its times. An answer whose server sent no time starts when the previous one ends."""
        requests = {(r.sample.round, r.sample.agent, r.sample.attempt, r.sample.vote): r for r in self.requests}
        turns: list[ExportedTurn] = []
        for call in self.rollout.calls:
            request = requests.get((call.round, call.agent, call.attempt, call.vote))
            if not call.is_answer or request is None:
                continue
            start = request.created_ms
            if not start or start < self.started_ms - CLOCK_SKEW_MS:
                start = turns[-1].end_ms if turns else self.started_ms
            turns.append(ExportedTurn(call, request, start, start + (call.latency_ms or 0.0)))
        return turns

    def chat(self, agent: str) -> list[ChatLine]:
        """Return an agent's whole game as a chat: the last messages that its model received, and its answer.

        The answer is the one that counted: of several votes, the chosen one. The list is empty if the agent's model
        received no request.
        """
        last_request = self.last_request(agent)
        if last_request is None:
            return []
        answer = self._find_answer(last_request)
        model = self.cast[agent]["model"]
        earlier_model = None if agent == self.new_judge else model
        lines = [ChatLine(m, earlier_model if m["role"] == "assistant" else None) for m in last_request.messages]
        return lines if answer is None else [*lines, ChatLine({"role": "assistant", "content": answer}, model)]

    def last_request(self, agent: str) -> AnsweredRequest | None:
        """Return the last request to an agent's model, or None if the model received no request."""
        return next((request for request in reversed(self.requests) if request.sample.agent == agent), None)

    def _find_answer(self, request: AnsweredRequest) -> str | None:
        """Return the agent's answer in the round of its last request, or None if no text was received.

        All answers of a round were requested with the same chat. The result is the answer that counted or, if a failure
        ended the round, the last answer.
        """
        sample, rendered = request.sample, request.agent.transcript_text
        count = request.observation.answer_count
        calls = [
            (rendered(call.raw_message, call.round, count), call)
            for call in self.calls(sample.agent)
            if call.round == sample.round and call.raw_message is not None
        ]
        rounds = self.rollout.rounds
        counted_answer = rounds[sample.round].raw.get(sample.agent) if sample.round < len(rounds) else None
        if any(text == counted_answer for text, _ in calls):
            return counted_answer
        last_texts = (text for text, c in calls if (c.attempt, c.vote) == (sample.attempt, sample.vote))
        return next(last_texts, None)

    def conversation(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of the game as one conversation. A heading names each message's round, sender and channel.

        Texts without a recipient, such as verdicts, are included unchanged.
        """
        judge_calls = self.calls(self.new_judge) if self.new_judge else []
        verdict_round = max((call.round for call in judge_calls), default=-1)
        for number, played_round in enumerate(self.rollout.rounds):
            delivered = [(m.agent, m.channel, m.text) for m in played_round.messages if m.text]
            senders = {agent for agent, _, _ in delivered}
            undelivered = [(agent, None, text) for agent, text in played_round.raw.items() if agent not in senders]
            for agent, channel, text in (*delivered, *undelivered):
                where = "to no one" if channel is None else f"in {channel}"
                is_from_this_run = agent != self.new_judge or number == verdict_round
                yield {
                    "role": "assistant",
                    "content": f"[round {number}, {label_player(agent, self.stances.get(agent))} {where}]\n{text}",
                    **({"model": self.cast[agent]["model"]} if is_from_this_run else {}),
                    "metadata": {"round": number, "agent": agent, "channel": channel},
                }

    def calls(self, agent: str) -> list[Call]:
        """Return the calls of one agent, including failed ones."""
        return [call for call in self.rollout.calls if call.agent == agent]

    @property
    def verdict(self) -> str | None:
        """`accept`, `reject`, or the letter of a listed answer; None without a verdict."""
        rollout = self.rollout
        if rollout.answers is not None:
            return rollout.answers.chosen_letter
        return stance_word(Decision(rollout.decision)) if rollout.outcome == Outcome.DECIDED else None

    def verdict_of(self, agent: str) -> str | None:
        """Return the verdict that an agent gave: of a judge of a panel, its own one; None if it gave none."""
        if self.rollout.panel is None:
            return self.verdict if self.cast[agent]["role"] == "verifier" else None
        decisions = {judge.agent: judge.verdict.decision for judge in self.rollout.panel}
        return None if decisions.get(agent, Decision.NONE) == Decision.NONE else verdict_word(decisions[agent])

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the datapoint; listed answers are a mapping of the game's letters to texts."""
        return shown_columns(self.rollout)

    @cached_property
    def facts(self) -> dict[str, object]:
        """The variant of the game and the details of its verdict, without missing values.

        Decisions are numbers, as in the run's tables: 0 reject, 1 accept, 2 none. Listed answers are letters.
        """
        rollout, planned = self.rollout, self.rollout.job
        optional_facts = {
            "stance": None if rollout.answers else rollout.stance if planned.stance is None else planned.stance,
            "swapped": planned.swapped,
            "stances_exchanged": planned.stances_exchanged,
            **({} if rollout.answers is None else rollout.answers.columns()),
            "votes": votes_json(rollout),
            "verdicts": None if rollout.verdicts is None else [verdict.to_json() for verdict in rollout.verdicts],
            "panel": None if rollout.panel is None else [judge.to_json() for judge in rollout.panel],
            **{name: getattr(rollout, name) for name in CONFIDENCE_FIELDS},
        }
        return {name: value for name, value in optional_facts.items() if value is not None}

    @property
    def label(self) -> str | None:
        """The right verdict: `accept`, `reject`, or the letters of the right answers, such as `A, C`.

        None if the label depends on a prover's statement, and the game ended without one.

        Raises:
            UsageError: the run has no labels: it is an analysis, or the dataset's owner keeps them private.
        """
        label = shown_label(self.rollout)
        if label is not None:
            return label_word(label)
        if self.rollout.subject is not None:
            return None
        reason = "run's dataset has none, because its owner keeps them private; export a run on a dataset with labels"
        if self.analyzed_run is not None:
            reason = f"run is an analysis, which has no right answers; export the analyzed run, {self.analyzed_run}"
        raise UsageError(f"this format needs labels, but the {reason}")


@dataclass(frozen=True)
class RunSource:
    """A finished run that can be exported."""

    folder: RunFolder
    manifest: Manifest
    plan: Plan
    metrics: Sequence[MetricRow]
    """The rows of `metrics.json`."""
    interval: str
    """The method of the run's confidence intervals."""
    stopped: str | None = None
    """The conclusion of a run with a stopping rule; None for other runs."""

    @classmethod
    def load(cls, folder: RunFolder) -> Self:
        """Load the run in a folder.

        Raises:
            UsageError: the run is not finished, is a training run, or plays trees.
        """
        manifest = folder.manifest()
        if manifest.status not in (Status.DONE, Status.INCOMPLETE):
            raise UsageError(
                f"run {folder.run_id} is {manifest.status.value}; resume the run with `nip-run {folder.path}`, then "
                "export it"
            )
        plan = played_plan(folder, trusts_manifest=True)
        if plan.tree_shape is not None:
            raise UsageError(
                f"run {folder.run_id} has trees of responses, whose branches share rounds, but this format has only "
                "single games. Export a run of single games, or the trees with --format trl --method dpo"
            )
        summary = folder.read_metrics()
        return cls(
            folder, manifest, plan, summary["metrics"], summary["interval"], summary.get("until", {}).get("note")
        )

    def agent(self, name: str) -> AgentRow:
        """Return an agent by its name.

        Raises:
            UsageError: there is no such agent.
        """
        for row in self.manifest.agents:
            if row["agent"] == name:
                return row
        names = comma_join(row["agent"] for row in self.manifest.agents)
        raise UsageError(f"--subject {name}: {self.folder.run_id} has no such agent; choose one of {names}")

    def require_subject(self, name: str | None, format_: str) -> AgentRow:
        """Return the agent that `--subject` names, for formats that describe one model.

        Raises:
            UsageError: no agent is named, or there is no such agent.
        """
        if name is None:
            models = comma_join(f"{row['agent']} ({row['model']})" for row in self.manifest.agents)
            raise UsageError(
                f"--format {format_} describes one model, but a game has a model for each agent: {models}. Choose an "
                "agent with --subject AGENT"
            )
        return self.agent_with_one_model(name)

    def agent_with_one_model(self, name: str) -> AgentRow:
        """Return an agent whose model is the same in all games.

        Raises:
            UsageError: there is no such agent, or the agent exchanges its model with another agent in some games.
        """
        row, seats = self.agent(name), self.plan.seats or ()
        groups = {agent: self.agent(agent)["model_group"] for agent in seats}
        if name in seats and len(set(groups.values())) > 1:
            other_agents = comma_join(row["agent"] for row in self.manifest.agents if row["agent"] not in seats)
            raise UsageError(
                f"--subject {name}: in half of the games of {self.folder.run_id} {' and '.join(seats)} have exchanged "
                f"their models ({' and '.join(groups.values())}: `seats: swap`), so the metrics mix both models. "
                f"Choose another agent ({other_agents}), or export each game with its own models: --format scout, or "
                "--format inspect without --subject"
            )
        return row

    @cached_property
    def _swapped_players(self) -> Mapping[str, str]:
        """The agent whose model plays an agent in games with exchanged models, by the name of the played agent."""
        return exchange_players({row["agent"]: row["agent"] for row in self.manifest.agents}, self.plan.seats)

    @cached_property
    def _casts(self) -> dict[bool, dict[str, AgentRow]]:
        """The agents by name with the models that play them: True for games with exchanged models, False for others."""
        rows = {row["agent"]: row for row in self.manifest.agents}
        return {
            False: rows,
            True: {
                agent: {**rows[player], "agent": agent, "role": rows[agent]["role"]}
                for agent, player in self._swapped_players.items()
            },
        }

    @property
    def exchange(self) -> str | None:
        """A sentence about the agents that exchange their models; None if there are none."""
        seats = self.plan.seats
        return None if seats is None else f"in half of the games {' and '.join(seats)} have exchanged their players"

    @cached_property
    def fixed_verdicts(self) -> str | None:
        """The reason if the run's verdicts do not follow its verifier's answers; None if they do."""
        return fixed_verdicts_of(self.folder)

    @property
    def lost_rollouts(self) -> str | None:
        """A sentence about rollouts that were lost in transport; None if there are none."""
        lost = self.manifest.transport_failed
        return f"{lost} of {self.manifest.rollouts} rollouts lost in transport" if lost else None

    @property
    def copied_answers(self) -> str | None:
        """A sentence about answers that come from other runs; None if there are none."""
        origins, replay = self.manifest.origins, self.manifest.replay_of
        if replay is not None:
            until = "" if replay.until_round is None else f" until round {replay.until_round}"
            return f"replay of {replay.run_id}{until}"
        copied = origins.verdicts - origins.own
        return f"{copied} of its {origins.verdicts} verdicts come from answers of other runs" if copied else None

    @property
    def why_no_own_accuracy(self) -> str | None:
        """The reason if the run does not measure its own verifier, such as copied answers; None if it does."""
        origins = self.manifest.origins
        is_copy = self.manifest.is_whole_replay or origins.own * 2 < origins.verdicts
        return self.fixed_verdicts or (self.copied_answers if is_copy else None)

    @property
    def provenance(self) -> dict[str, str]:
        """Sentences by topic about special properties of this run, such as exchanged models or copied answers."""
        manifest = self.manifest
        sentences = {
            "seats": self.exchange,
            "until": self.stopped,
            "fixed_verdicts": self.fixed_verdicts,
            "copied_answers": self.copied_answers,
            "lost_rollouts": self.lost_rollouts,
        }
        if manifest.rejudge_of is not None:
            sentences["debates_of"] = manifest.rejudge_of.run_id
        return {name: text for name, text in sentences.items() if text is not None}

    @property
    def omitted_texts(self) -> list[str]:
        """Texts of the games that the chats do not contain, as phrases for `not_carried`."""
        sentences = []
        if self.manifest.rejudge_of is not None:
            sentences.append(f"which agent asked the questions in the debates of {self.manifest.rejudge_of.run_id}")
        if self.plan.spec.experiment.votes > 1:
            sentences.append("the answers of votes that were not chosen (the decision of each vote is included)")
        if self.plan.spec.experiment.rejudge is not None and self.plan.spec.experiment.rejudge.verdict == "each":
            sentences.append("the answers of intermediate verdicts (each verdict itself is included)")
        return sentences

    def player(self, game: ExportedGame, agent: str) -> str:
        """Return the name of the agent whose model plays `agent` in a game."""
        return self._swapped_players[agent] if game.rollout.job.swapped else agent

    @property
    def verifiers(self) -> list[AgentRow]:
        """The verifier, or the judges of a panel."""
        return [row for row in self.manifest.agents if row["role"] == "verifier"]

    def metric(self, name: str) -> MetricRow | None:
        """Return the row of a metric of the game as a whole, or None if it has no value."""
        rows = (row for row in self.metrics if row["agent"] is None and row["metric"] == name)
        return next((row for row in rows if row["value"] is not None), None)

    def prompt(self, agent: str) -> str:
        """Return the source text of an agent's prompt template."""
        return self.plan.spec.prompts.sources[agent]

    def games(self) -> Iterator[ExportedGame]:
        """Yield every finished game in the order of the plan, including games that were lost in transport."""
        new_judge = None if self.manifest.rejudge_of is None else self.plan.spec.protocol.verifier_name
        start_ms = started_ms(self.manifest)
        with closing(Reconstructor(self.folder, self.plan)) as reconstructor:
            for rollouts, requests in reconstructor.rollouts_and_requests():
                for rollout in rollouts:
                    cast = self._casts[bool(rollout.job.swapped)]
                    stances = shown_stances(self.plan.spec.protocol, rollout)
                    analyzed_run = self.manifest.analysis_of
                    yield ExportedGame(rollout, requests, cast, stances, new_judge, start_ms, analyzed_run)


def token_usage(calls: Sequence[Call]) -> dict[str, int]:
    """Return the tokens of calls, with the names that Inspect and Every Eval Ever use.

    `input_tokens` includes the tokens that a cache read or wrote. Cache writes and reasoning are left out if they are
    0, since most servers do not report them.
    """
    prompt, completion = sum(call.prompt_tokens for call in calls), sum(call.completion_tokens for call in calls)
    optional = {
        "input_tokens_cache_write": sum(call.cache_write_tokens for call in calls),
        "reasoning_tokens": sum(call.reasoning_tokens for call in calls),
    }
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_cache_read": sum(call.cached_tokens for call in calls),
        **{name: tokens for name, tokens in optional.items() if tokens},
    }


def generation_options(settings: ModelSettings) -> dict[str, object]:
    """Return the generation options that the spec sets for a model."""
    options = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_completion_tokens or settings.max_tokens,
    }
    return {name: value for name, value in options.items() if value is not None}
