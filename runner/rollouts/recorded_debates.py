"""The debates of a run up to their verdicts, which another run judges again.

Debates are saved as JSON lines: a header with the run and the context of its debates, then one line for each debate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import orjson

from runner.base.errors import RunDirectoryError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.text import counted
from runner.documents.dataclass_schema import to_plain
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Message, MessageCounts, Reply, Round
from runner.game.protocols.statements import StatedParts
from runner.rollouts.identity import agent_content, checker_content, model_content, protocol_content
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.loader import Spec


@dataclass(frozen=True, slots=True)
class Debate:
    """One debate up to a verdict."""

    content_hash: str
    """The hash of the datapoint's content."""
    rounds: Sequence[Round]
    """The rounds before the round of the verdict. The number of rounds is the index of the round of the verdict."""
    other_replies: Mapping[str, Reply] = field(default_factory=dict)
    """The replies of the other agents in the round of the verdict. The judge does not see these replies."""

    @classmethod
    def from_rollout(cls, rollout: Rollout, protocol: Protocol) -> Self | str:
        """Return the debate of a finished game, or the reason why it cannot be judged.

        The debate ends where the game's verifier decided. If the verifier did not decide, the debate ends at the last
        turn where it could have decided.
        """
        if rollout.outcome == Outcome.TRANSPORT_FAILED:
            return "lost in transport"
        rounds, seed = rollout.rounds, rollout.job.seed
        if rollout.outcome == Outcome.DECIDED:
            end = len(rounds) - 1
        else:
            ends = verdict_rounds(protocol, seed, len(rounds))
            if not ends or (ends[-1] == 0 and protocol.prover_names):
                return "cut off before anything was said that could be judged"
            end = ends[-1]
        replies = _replies_of_others(rounds[end], protocol.verifier_name) if end < len(rounds) else {}
        return cls(rollout.job.datapoint.content_hash, tuple(map(_remove_calls, rounds[:end])), replies)

    def to_json(self) -> dict[str, Any]:
        return {
            "content": self.content_hash,
            "rounds": [_round_fields(round_) for round_ in self.rounds],
            "beside": {name: [reply.raw, dict(reply.messages or {})] for name, reply in self.other_replies.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        rounds = tuple(_round(fields) for fields in data["rounds"])
        replies = {name: Reply(raw, messages or None, calls=0) for name, (raw, messages) in data["beside"].items()}
        return cls(data["content"], rounds, replies)


def job_key(job: Job) -> tuple[str, int]:
    """Return the key of a job within its run: the datapoint and the job's number among the datapoint's games."""
    return job.datapoint.id, job.number


def verdict_rounds(protocol: Protocol, seed: int, last: int) -> list[int]:
    """Return the numbers of the rounds up to `last` where the verifier may decide, in a game with this seed."""
    rounds = range(min(last, protocol.last_speaking_round) + 1)
    return [i for i in rounds if protocol.can_ever_decide(i) and protocol.may_decide(i, seed)]


def _replies_of_others(played: Round, verifier: str) -> dict[str, Reply]:
    return {
        name: Reply(raw, {m.channel: m.text for m in played.messages if m.agent == name} or None, calls=0)
        for name, raw in played.raw.items()
        if name != verifier
    }


def _remove_calls(played: Round) -> Round:
    """Return a round without calls and retries: judging a debate requests no answers for its earlier rounds."""
    messages = tuple(played.messages)
    return Round(
        dict(played.raw), messages, int(played.decision), dict(played.rewards), asked=frozenset(), stated=played.stated
    )


def _round_fields(played: Round) -> dict[str, object]:
    return {
        "raw": dict(played.raw),
        "messages": [_message_fields(message) for message in played.messages],
        "decision": int(played.decision),
        "rewards": dict(played.rewards),
        **({} if played.stated is None else {"stated": played.stated.to_json()}),
    }


def _message_fields(message: Message) -> list[Any]:
    counts = [] if message.counts is None else [to_plain(message.counts)]
    return [message.channel, message.agent, message.text, *counts]


def _round(data: Mapping[str, Any]) -> Round:
    messages = tuple(
        Message(channel, agent, text, *(MessageCounts(**count) for count in counts))
        for channel, agent, text, *counts in data["messages"]
    )
    stated = StatedParts.from_json(data["stated"]) if "stated" in data else None
    return _remove_calls(Round(data["raw"], messages, data["decision"], data["rewards"], stated=stated))


_HEADER_FIELDS = ("run_id", "identity", "journal_sha256", "context", "repeats", "left_out")


@dataclass(frozen=True)
class Debates:
    """The debates of a run, by datapoint and number."""

    run_id: str
    identity: str
    journal_sha256: str
    context: Mapping[str, Any]
    """The values that the debates depend on, by spec key; see `debate_context`."""
    repeats: int
    """The number of repeats of each datapoint in the run."""
    left_out: Mapping[str, int]
    """The number of the run's games that have no debate to judge, by reason."""
    by_job: Mapping[tuple[str, int], Debate]
    stopping_note: str | None = None
    """A note if `until` stopped the run, so that the number of debates depends on its judge's verdicts; else None."""

    @cached_property
    def hashes(self) -> Mapping[tuple[str, int], str]:
        """The hash of each debate's content."""
        return {key: tagged_hash("debate", debate.to_json()) for key, debate in self.by_job.items()}

    def lines(self) -> bytes:
        """Return the JSON lines that save the debates: a header with the hash of the rest, and the rest."""
        rows = b"".join(
            orjson.dumps({"datapoint": point, "repeat": repeat, **debate.to_json()}, option=orjson.OPT_APPEND_NEWLINE)
            for (point, repeat), debate in self.by_job.items()
        )
        header = {
            **{name: getattr(self, name) for name in _HEADER_FIELDS},
            "debates_sha256": sha256(rows).hexdigest(),
            **({} if self.stopping_note is None else {"stopped": self.stopping_note}),
        }
        return orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE) + rows

    @classmethod
    def from_lines(cls, lines: Iterable[bytes]) -> Self:
        """Read the debates that `lines` wrote.

        Raises:
            ValueError, KeyError, TypeError: the lines were edited, or `lines` did not write them.
        """
        header_line, *rest = lines
        header = orjson.loads(header_line)
        if sha256(b"".join(rest)).hexdigest() != header["debates_sha256"]:
            raise ValueError("the debates differ from the saved ones")
        debates = {(row["datapoint"], row["repeat"]): Debate.from_json(row) for row in map(orjson.loads, rest)}
        header_fields = {name: header[name] for name in _HEADER_FIELDS}
        return cls(**header_fields, by_job=debates, stopping_note=header.get("stopped"))

    def check_judged(self, judged_debates: Debates, judging_run: str) -> None:
        """Check that the debates that a run has judged are unchanged. `judging_run` names this run.

        Raises:
            RunDirectoryError: a debate has changed or is missing.
        """
        changed = [key for key, debate in judged_debates.hashes.items() if self.hashes.get(key) != debate]
        if changed:
            raise RunDirectoryError(
                f"{judging_run} has judged {counted(len(changed), 'debate')} of {self.run_id} that have changed since "
                f"or are missing, such as that of datapoint {changed[0][0]}; add --again to judge the debates in a new "
                "run"
            )

    def check_spec(self, spec: Spec) -> None:
        """Check that a spec changes nothing that the debates depend on.

        Raises:
            UsageError: the spec changes the debates. The message names all keys that differ.
        """
        if spec.experiment.rollouts.per_datapoint > self.repeats:
            raise UsageError(
                f"rollouts.per_datapoint: {self.run_id} has only {counted(self.repeats, 'repeat')}; remove the key, or "
                "first play more repeats of that run"
            )
        recorded, current = self.context, orjson.loads(orjson.dumps(debate_context(spec)))
        differing = [key for key in {**recorded, **current} if recorded.get(key) != current.get(key)]
        hashes = {point: debate.content_hash for (point, _), debate in self.by_job.items()}
        points = spec.dataset.datapoints
        changed = [point.id for point in points if hashes.get(point.id, point.content_hash) != point.content_hash]
        if changed:
            differing.append(f"dataset (the content of {changed[0]} has changed since the debate)")
        elif not any(point.id in hashes for point in points):
            differing.append("dataset (there is no debate of any of these datapoints)")
        if differing:
            judge = spec.protocol.verifier_name
            group = spec.experiment.agents[judge].model
            shared = [n for n, a in spec.experiment.agents.items() if n != judge and a.model == group]
            hint = (
                f" {judge} shares the model group {group} with {', '.join(shared)}: give it a separate one, as in "
                f"'+models.judge={{model: NAME}}' agents.{judge}.model=judge."
                if shared and any(key.startswith(f"models.{group}.") for key in differing)
                else ""
            )
            raise UsageError(
                f"these keys would change the debates of {self.run_id}: {', '.join(differing)}. Only the judge may "
                f"change: agents.{judge}, its own model group, its templates (prompts=FOLDER, with only those "
                f"templates), decision_format, votes, verdict, retry.{hint}"
            )


def debate_context(spec: Spec) -> dict[str, Any]:
    """Return the values that a spec's debates depend on, by spec key, without datapoints and judge."""
    experiment, protocol = spec.experiment, spec.protocol
    rules = protocol_content(protocol)
    judge = protocol.verifier_name
    context: dict[str, Any] = {
        "seed": experiment.seed,
        "stances": experiment.stances,
        "seats": to_plain(experiment.seats),
        **{f"dataset.{name}": value for name, value in checker_content(experiment.dataset).items()},
        **{f"protocol.{name}": value for name, value in rules.pop("parameters").items()},
        "protocol.use": tagged_hash("rules", rules),
    }
    for name, source in spec.prompts.sources.items():
        if name.partition(".")[0] != judge:
            context[f"prompts ({name}.jinja)"] = tagged_hash("prompt", source)
    for name, agent in experiment.agents.items():
        if name == judge:
            continue
        context |= {f"agents.{name}.{key}": value for key, value in agent_content(agent).items()}
        model = model_content(experiment.models[agent.model], spec.replayed_sha256.get(agent.model), spec.plugins)
        context |= {f"models.{agent.model}.{key}": value for key, value in to_plain(model).items()}
    return context
