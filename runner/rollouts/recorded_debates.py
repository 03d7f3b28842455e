"""The debates of a run, as its judge left them: what was said before each verdict, to be judged again.

They are saved as JSON lines: a head that says whose they are and in which context they were held, then a line each.
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
from runner.game.protocols.rounds import Message, Reply, Round
from runner.rollouts.identity import agent_content, model_content, protocol_content
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.loader import Spec


@dataclass(frozen=True, slots=True)
class Debate:
    """One debate up to a verdict."""

    content: str
    """The hash of its datapoint's content."""
    rounds: Sequence[Round]
    """Before the round of the verdict, whose number is their count."""
    beside: Mapping[str, Reply] = field(default_factory=dict)
    """What the others said in the round of the verdict, which the judge has not heard."""

    @classmethod
    def of(cls, rollout: Rollout, protocol: Protocol) -> Self | str:
        """The debate of a finished game; or why there is none to judge.

        It ends where the first judge decided. One that was left undecided, or cut off, ends at the last turn up to
        there in which its judge could decide.
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
        beside = _beside(rounds[end], protocol.verifier_name) if end < len(rounds) else {}
        return cls(rollout.job.datapoint.content_hash, tuple(map(_spoken, rounds[:end])), beside)

    def to_json(self) -> dict[str, Any]:
        return {
            "content": self.content,
            "rounds": [_round_fields(one) for one in self.rounds],
            "beside": {name: [reply.raw, dict(reply.messages or {})] for name, reply in self.beside.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        rounds = tuple(_round(one) for one in data["rounds"])
        beside = {name: Reply(raw, messages or None, calls=0) for name, (raw, messages) in data["beside"].items()}
        return cls(data["content"], rounds, beside)


def key_of(job: Job) -> tuple[str, int]:
    """What tells a job from the others of its run: its datapoint, and its number among the plays of that."""
    return job.datapoint.id, job.number


def verdict_rounds(protocol: Protocol, seed: int, last: int) -> list[int]:
    """The rounds, up to this one, in which a verdict of the verifier would count in a game with this seed."""
    rounds = range(min(last, protocol.last_speaking_round) + 1)
    return [i for i in rounds if protocol.can_ever_decide(i) and protocol.may_decide(i, seed)]


def _beside(played: Round, verifier: str) -> dict[str, Reply]:
    return {
        name: Reply(raw, {m.channel: m.text for m in played.messages if m.agent == name} or None, calls=0)
        for name, raw in played.raw.items()
        if name != verifier
    }


def _spoken(played: Round) -> Round:
    """A round as it is for those who only judge it: nobody is asked for it, so there are no calls and no retries."""
    messages = tuple(played.messages)
    return Round(dict(played.raw), messages, int(played.decision), dict(played.rewards), asked=frozenset())


def _round_fields(played: Round) -> dict[str, Any]:
    return {
        "raw": dict(played.raw),
        "messages": [[m.channel, m.agent, m.text] for m in played.messages],
        "decision": int(played.decision),
        "rewards": dict(played.rewards),
    }


def _round(data: Mapping[str, Any]) -> Round:
    messages = tuple(Message(*one) for one in data["messages"])
    return _spoken(Round(data["raw"], messages, data["decision"], data["rewards"]))


@dataclass(frozen=True)
class Debates:
    """All debates of a run, by datapoint and repeat."""

    run_id: str
    identity: str
    journal_sha256: str
    context: Mapping[str, Any]
    """What they depend on besides the datapoints, by the keys that say it; see `context_of`."""
    repeats: int
    """How often each datapoint was to be debated."""
    left_out: Mapping[str, int]
    """How many games of the run are not among them, by the reason."""
    by_job: Mapping[tuple[str, int], Debate]
    stopped: str | None = None
    """Of a run that had stopped since it was decided: that its own judge's verdicts have chosen its games."""

    @cached_property
    def hashes(self) -> Mapping[tuple[str, int], str]:
        """Of each debate, the hash of all that was said in it."""
        return {key: tagged_hash("debate", debate.to_json()) for key, debate in self.by_job.items()}

    def lines(self) -> bytes:
        """As they are saved: a head, with the hash of all that follows."""
        rows = b"".join(
            orjson.dumps({"datapoint": point, "repeat": repeat, **debate.to_json()}, option=orjson.OPT_APPEND_NEWLINE)
            for (point, repeat), debate in self.by_job.items()
        )
        head = {
            "run_id": self.run_id,
            "identity": self.identity,
            "journal_sha256": self.journal_sha256,
            "context": self.context,
            "repeats": self.repeats,
            "left_out": self.left_out,
            "debates_sha256": sha256(rows).hexdigest(),
            **({} if self.stopped is None else {"stopped": self.stopped}),
        }
        return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE) + rows

    @classmethod
    def from_lines(cls, lines: Iterable[bytes]) -> Self:
        """What `lines` wrote.

        Raises:
            ValueError, KeyError, TypeError: it did not write this, or somebody has edited it.
        """
        first, *rest = lines
        head = orjson.loads(first)
        if sha256(b"".join(rest)).hexdigest() != head["debates_sha256"]:
            raise ValueError("not the debates that were saved")
        debates = {(row["datapoint"], row["repeat"]): Debate.from_json(row) for row in map(orjson.loads, rest)}
        known = {
            name: head[name] for name in ("run_id", "identity", "journal_sha256", "context", "repeats", "left_out")
        }
        return cls(**known, by_job=debates, stopped=head.get("stopped"))

    def check_same(self, before: Debates, judged: str) -> None:
        """See that no debate has changed since a run judged those there were before; there may be more by now.

        Raises:
            RunDirectoryError: one has, or is gone.
        """
        changed = [key for key, debate in before.hashes.items() if self.hashes.get(key) != debate]
        if changed:
            raise RunDirectoryError(
                f"{judged} has judged {counted(len(changed), 'debate')} of {self.run_id} that are others now, such as "
                f"that of {changed[0][0]}; add --again to judge them as a run of its own"
            )

    def check(self, spec: Spec) -> None:
        """See that a spec leaves what was debated, and by whom, as it was.

        Raises:
            UsageError: it does not; with every key that differs.
        """
        if spec.experiment.rollouts.per_datapoint > self.repeats:
            are = "repeat was" if self.repeats == 1 else "repeats were"
            raise UsageError(
                f"rollouts.per_datapoint: only {self.repeats} {are} debated in {self.run_id}; leave it out, or "
                "have more of that run played first"
            )
        theirs, ours = self.context, orjson.loads(orjson.dumps(context_of(spec)))
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        contents = {point: debate.content for (point, _), debate in self.by_job.items()}
        points = spec.dataset.datapoints
        changed = [p.id for p in points if contents.get(p.id, p.content_hash) != p.content_hash]
        if changed:
            keys.append(f"dataset ({changed[0]} is not the datapoint that was debated)")
        elif not any(point.id in contents for point in points):
            keys.append("dataset (none of these datapoints was debated)")
        if keys:
            judge = spec.protocol.verifier_name
            group = spec.experiment.agents[judge].model
            shared = [n for n, a in spec.experiment.agents.items() if n != judge and a.model == group]
            own = (
                f" {judge} shares the model group {group} with {', '.join(shared)}: give it one of its own, as in "
                f"'+models.judge={{model: NAME}}' agents.{judge}.model=judge."
                if shared and any(key.startswith(f"models.{group}.") for key in keys)
                else ""
            )
            raise UsageError(
                f"the debates of {self.run_id} would be others with: {', '.join(keys)}. What may change is the judge: "
                f"agents.{judge}, a model group of its own, its templates (prompts=FOLDER, with those alone), "
                f"decision_format, votes, retry.{own}"
            )


def context_of(spec: Spec) -> dict[str, Any]:
    """What the debates of a spec depend on besides datapoints and judge, by the keys that say it."""
    experiment, protocol = spec.experiment, spec.protocol
    rules = protocol_content(protocol)
    judge = protocol.verifier_name
    context: dict[str, Any] = {
        "seed": experiment.seed,
        "stances": experiment.stances,
        "seats": to_plain(experiment.seats),
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
        model = model_content(experiment.models[agent.model], spec.replayed.get(agent.model))
        context |= {f"models.{agent.model}.{key}": value for key, value in to_plain(model).items()}
    return context
