"""Notes on servers that do not do what a request says; each is reported once for each model group."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.models.interface import Completion, Request, SampleKey, byte_length
from runner.models.journal_records import messages_hash
from runner.models.logprobs import has_logprobs
from runner.models.plausible_usage import LostMessages
from runner.models.settings import ModelSettings

log = logging.getLogger("nip_run.notes")

MAX_PROMPTS = 4096
"""The number of prompts whose last answer is remembered; retries and repeats of a prompt come close together."""

SAME_SHORT = 5
"""The number of equal pairs of short answers that is suspicious; two bare verdicts are often equal by chance."""

LONG = 200
"""The minimum length in characters of two equal answers that are not a coincidence."""

_ALTERED = {
    "choices": "the server of {group} returns more answers to a call than requested; the extra ones are ignored",
    "secret": "an answer of {group} contained a secret, which was removed; its record is marked (`altered`)",
    "bytes": "an answer of {group} was not strict JSON or UTF-8 and was repaired; its record is marked (`altered`)",
}


@dataclass
class _Pairs:
    """How often two answers to the same prompt were equal, for a model group with a fixed seed."""

    same: int = 0
    is_settled: bool = False
    """Whether two answers differed, or the note was already reported."""


class ServerNotes:
    """Adds notes to a run and to its log, and reports them to the watch."""

    def __init__(
        self, groups: Mapping[str, ModelSettings], notes: list[str], tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._groups = groups
        self._notes = notes
        self._tell = tell
        self._reported: set[str] = set()
        self._unlike: dict[tuple[str, str], tuple[int, str, str]] = {}
        """The number of refused calls, the first error and the note, by group and server."""
        self._lost = LostMessages(group for group, settings in groups.items() if settings.traits.remote)
        self._last: dict[tuple[str, str], tuple[SampleKey, bytes]] = {}
        self._pairs = {group: _Pairs() for group in groups}
        self._sampling = {group: settings.sampling() for group, settings in groups.items()}

    def note(self, line: str, about: str | None = None) -> None:
        """Report a note once, to the watch and in the log.

        Of several notes with the same `about`, report only the first.
        """
        if line not in self._notes and about not in self._reported:
            if about is not None:
                self._reported.add(about)
            self._notes.append(line)
            log.warning("%s", line)
            self._tell(line)

    def unlike(self, group: str, server: str, calls: int, said: str) -> None:
        """Report that one of several servers refused `calls` more calls that others accepted.

        `said` is its last error.
        """
        key = group, server
        before, first_error, note = self._unlike.get(key, (0, said, ""))
        total = before + calls
        count = "1 call" if total == 1 else f"{total:,} calls"
        new_note = (
            f"{server} refused {count} of models.{group} that its other servers accepted; the first: {first_error}; "
            f"remove {server} from models.{group}.base_url, or configure it like the others"
        )
        self._unlike[key] = total, first_error, new_note
        if not before:
            self.note(new_note)
            return
        self._notes[self._notes.index(note)] = new_note
        if total.bit_length() > before.bit_length():  # log it each time that the number has doubled
            log.warning("%s", new_note)

    def gave_fewer(self, group: str) -> None:
        """Report that a call for several answers got fewer."""
        self.note(
            f"the server of {group} ignores `n`: it returns fewer answers to a call than requested; the missing ones "
            "are requested in separate calls, and each of these calls pays for the prompt again"
        )

    def answered(self, request: Request, completion: Completion) -> None:
        """Check one answer."""
        group = request.group
        settings, sampling = self._groups[group], self._sampling[group]
        for kind in completion.altered:
            self.note(_ALTERED.get(kind, "an answer was changed on arrival: {kind}").format(kind=kind, group=group))
        if any(choice.text is None and choice.finish_reason == "length" for choice in completion.choices):
            self.note(f"{group}: {settings.limit_advice(group)}")
        if completion.from_cache:
            return
        requested = sampling.get("n")
        if (
            isinstance(requested, int)
            and len(completion.choices) < requested
            and "error" not in completion.other_fields
        ):
            self.gave_fewer(group)
        if sampling.get("logprobs") and _lacks_logprobs(completion):
            self.note(f"the server of {group} returns no log-probabilities, which models.{group}.logprobs requests")
        if sampling.get("seed") is not None:
            self._compare(request, completion, sampling["seed"])
        counted_tokens = self._lost.check(request, completion)
        if counted_tokens is not None:
            self.note(_lost_text(request, settings, counted_tokens), f"lost messages of {group}")

    def _compare(self, request: Request, completion: Completion, seed: object) -> None:
        """Check whether all samples of a prompt get the same answer."""
        group, pairs = request.group, self._pairs[request.group]
        texts = "\0".join(choice.text or "" for choice in completion.choices)
        if pairs.is_settled or not texts.strip("\0"):
            return
        prompt = (group, messages_hash(request.messages))
        digest = hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        sample, before = self._last.get(prompt, (request.sample, b""))
        if len(self._last) >= MAX_PROMPTS:
            self._last.clear()
        self._last[prompt] = (request.sample, digest)
        if sample == request.sample or sample.datapoint != request.sample.datapoint:
            return
        if before != digest:
            pairs.is_settled = True
            return
        pairs.same += 1
        if len(texts) >= LONG or pairs.same >= SAME_SHORT:
            pairs.is_settled = True
            times = "the only time" if pairs.same == 1 else f"all {pairs.same} times"
            self.note(
                f"{group} returned the same answer to a repeated prompt, {times}: models.{group}.seed is fixed "
                f"({seed}), so retries and repeats may all get one answer; remove the seed to get different answers",
                f"same answers of {group}",
            )


def _lacks_logprobs(completion: Completion) -> bool:
    """Return whether a server's answer has text but no log-probabilities."""
    return completion.body is not None and any(c.text for c in completion.choices) and not has_logprobs(completion)


def _lost_text(request: Request, settings: ModelSettings, counted: int) -> str:
    """Return the note that a message was lost on the way to the model, with remedies that were not tried yet."""
    key, sample = f"models.{request.group}", request.sample
    size = sum(byte_length(message["content"]) for message in request.messages)
    roles = ", ".join(message["role"] for message in request.messages)
    untried = [
        *([f"{key}.chat_format=alternating"] if settings.chat_format != "alternating" else []),
        *([f"{key}.system_role=user, if the model knows no system messages"] if settings.system_role != "user" else []),
    ]
    advice = f"try {', and '.join(untried)}" if untried else "check its chat template, or use another model"
    return (
        f"the server of model group {request.group} counted {counted} prompt tokens in {size:,} bytes of messages "
        f"({roles}; {sample.agent} in round {sample.round} on {sample.datapoint}): it lost text, most likely because "
        f"its chat template drops a message; {advice}. `nip-run render` shows what is sent"
    )
