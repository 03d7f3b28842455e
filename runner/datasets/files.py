"""Rollouts into fine-tune files: one a model group and one an agent, each line checked before it is written.

A file is written as rollouts come, beside its place, and put there when it has enough examples. What was left
out, and why, is counted and reported.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from runner.errors import RunError, UsageError
from runner.prompts.chat import ChatMessage
from runner.records import DECIDED, NO_DECISION, Rollout
from runner.seat import Position, Seat
from runner.spec.experiment import FineTune
from runner.text import listed, nearest

METHOD = "sft"
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Format:
    """A consumer's file format: what it calls itself in file names, and its form of one example."""

    suffix: str
    line: Callable[[Sequence[ChatMessage]], dict[str, Any]]


def _openai_line(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    return {"messages": list(messages)}


def _trl_line(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """TRL's conversational form. Chat templates know no `name`, so the sender stands in the text."""
    return {"messages": [_with_sender(message) for message in messages]}


def _with_sender(message: ChatMessage) -> dict[str, str]:
    name = message.get("name")
    content = f"{name}: {message['content']}" if name else message["content"]
    return {"role": message["role"], "content": content}


FORMATS: Mapping[str, Format] = {
    "openai": Format("", _openai_line),
    "trl": Format(".trl", _trl_line),
}


def problem_of(messages: Sequence[ChatMessage]) -> str | None:
    """Why an example cannot be trained on; None where it can."""
    if not any(message["role"] == "assistant" for message in messages):
        return "no assistant message"
    for message in messages:
        if message["role"] not in ROLES:
            return f"unknown role {message['role']}"
        if not message["content"].strip():
            return "empty content"
    return None


class _Seen:
    """The lines that each file has already, as digests in a file of their own: memory does not grow with them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("CREATE TABLE seen (owner TEXT, digest BLOB, PRIMARY KEY (owner, digest)) WITHOUT ROWID")
        self._db.execute("BEGIN")  # never to be committed: the file is gone in the end, and a commit a line is dear

    def add(self, owner: str, digest: bytes) -> bool:
        """Whether the line with this digest is new to this owner."""
        return self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", [owner, digest]).rowcount == 1

    def close(self) -> None:
        self._db.close()
        self._path.unlink(missing_ok=True)


def remove_files(folder: Path) -> None:
    """Remove the fine-tune files that an earlier pass over the run has left; nobody else's."""
    for suffix in (f".{METHOD}{format_.suffix}.jsonl" for format_ in FORMATS.values()):
        for path in (*folder.glob("*" + suffix), *folder.glob("agents/*" + suffix)):
            path.unlink()
    (folder / "report.json").unlink(missing_ok=True)


@dataclass
class _File:
    """One file that is being written."""

    target: Path
    handle: IO[bytes]
    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def beside(self) -> Path:
        return self.target.with_name(self.target.name + ".new")


class FineTuneFiles:
    """The fine-tune files of one run; `add` takes rollouts in the order of the plan."""

    def __init__(self, folder: Path, settings: FineTune, agents: Mapping[str, Seat]) -> None:
        unknown = [name for name in settings.agents or () if name not in agents]
        if unknown:
            raise UsageError(
                f"no agent {listed(map(repr, unknown))}{nearest(unknown[0], agents)}; there are {listed(agents)}"
            )
        self._settings = settings
        self._agents = {
            name: agent for name, agent in agents.items() if settings.agents is None or name in settings.agents
        }
        self._folder = folder
        self._files: dict[tuple[str, str], _File] = {}
        try:
            (folder / "agents").mkdir(parents=True, exist_ok=True)
            self._seen = _Seen(folder / ".seen")
            for format_ in settings.formats:
                suffix = f".{METHOD}{FORMATS[format_].suffix}.jsonl"
                for name, agent in self._agents.items():
                    group = agent.shared_model_group
                    for key, target in (
                        ((format_, name), folder / "agents" / (name + suffix)),
                        ((format_, "group:" + group), folder / (group + suffix)),
                    ):
                        if key not in self._files:
                            target.unlink(missing_ok=True)
                            handle = target.with_name(target.name + ".new").open("wb")
                            self._files[key] = _File(target, handle)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot write {folder}: {error}") from error

    def add(self, rollout: Rollout) -> None:
        """Add each agent's example of one rollout."""
        reason = self._unusable(rollout)
        for name, agent in self._agents.items():
            owners = (name, "group:" + agent.shared_model_group)
            example = self._example(rollout, agent) if reason is None else None
            why = reason or ("the agent said nothing" if example is None else problem_of(example))
            if example is None or why is not None:
                self._leave_out(owners, why or "nothing")
            else:
                self._write(owners, example)

    def _unusable(self, rollout: Rollout) -> str | None:
        if rollout.outcome not in (DECIDED, NO_DECISION):
            return f"outcome {rollout.outcome}"
        if self._settings.only_correct and not rollout.correct:
            return "wrong verdict"
        return None

    def _example(self, rollout: Rollout, agent: Seat) -> list[ChatMessage] | None:
        job, rounds = rollout.job, rollout.rounds
        position = Position(
            min(len(rounds), agent.max_message_rounds - 1), rounds, job.datapoint.columns, job.seed,
            job.datapoint.prover_stance, job.datapoint.id, job.repeat,
        )  # fmt: skip
        return agent.fine_tune_example(
            position,
            job.datapoint.label,
            ensure_last_message_is_assistant=self._settings.ensure_last_message_is_assistant,
            replace_verifier_guess_with_true_label=(
                self._settings.replace_verifier_guess_with_true_label and agent.is_verifier
            ),
        )

    def _leave_out(self, owners: Sequence[str], why: str) -> None:
        for owner in owners:
            for format_ in self._settings.formats:
                self._files[format_, owner].left_out[why] += 1

    def _write(self, owners: Sequence[str], example: Sequence[ChatMessage]) -> None:
        """Write an example to the files of those owners who do not have it yet."""
        digest = hashlib.sha256(orjson.dumps(example)).digest()[:16]
        lines = {
            name: orjson.dumps(FORMATS[name].line(example), option=orjson.OPT_APPEND_NEWLINE)
            for name in self._settings.formats
        }
        for owner in owners:
            if not self._is_new(owner, digest):
                self._leave_out((owner,), "duplicate line")
                continue
            for format_, line in lines.items():
                file = self._files[format_, owner]
                try:
                    file.handle.write(line)
                except OSError as error:
                    raise RunError(f"cannot write {file.target}: {error.strerror}") from error
                file.written += 1

    def _is_new(self, owner: str, digest: bytes) -> bool:
        try:
            return self._seen.add(owner, digest)
        except sqlite3.Error as error:
            raise RunError(f"cannot write {self._folder}: {error}") from error

    def close(self) -> list[dict[str, Any]]:
        """Put the files with enough examples in their place, and report all of them."""
        self._seen.close()
        report = []
        fewest = self._settings.min_examples
        for (format_, name), file in sorted(self._files.items()):
            enough = file.written >= fewest
            try:
                file.handle.flush()
                os.fsync(file.handle.fileno())
                file.handle.close()
                if enough:
                    file.beside.replace(file.target)
                else:
                    file.beside.unlink()
            except OSError as error:
                raise RunError(f"cannot write {file.target}: {error.strerror}") from error
            report.append(
                {
                    "file": str(file.target.relative_to(self._folder)),
                    "format": format_,
                    "for": name.removeprefix("group:"),
                    "examples": file.written,
                    "written": enough,
                    "left_out": dict(sorted(file.left_out.items())),
                    "why_not_written": None
                    if enough
                    else f"{file.written} examples, fewer than min_examples ({fewest})",
                }
            )
        return report

    def discard(self) -> None:
        """Leave no half-written file."""
        self._seen.close()
        for file in self._files.values():
            with suppress(OSError):  # a full disk has its error already; this one must not hide it
                file.handle.close()
            file.beside.unlink(missing_ok=True)
