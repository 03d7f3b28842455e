"""What a server does otherwise than it was asked, noticed on its answers and said once for each model group."""

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
"""The last answers to this many prompts are kept: retries and repeats of one come close together."""

SAME_SHORT = 5
"""How many pairs of short answers to one prompt must agree: two bare verdicts often do by chance."""

LONG = 200
"""Characters of an answer that does not come twice by chance."""

_ALTERED = {
    "choices": "the server of {group} gives more answers to a call than are asked for; only those are used and counted",
    "secret": "an answer to {group} held a secret, which was removed; its record says so (`altered`)",
    "bytes": "an answer to {group} was not strict JSON or UTF-8, and was repaired; its record says so (`altered`)",
}


@dataclass
class _Pairs:
    """Of a group with a fixed seed: how often two answers to one prompt were the same."""

    same: int = 0
    is_settled: bool = False
    """Whether two differed, or enough was seen."""


class ServerNotes:
    """Adds to the notes of a run and to its log, and tells those who watch."""

    def __init__(
        self, groups: Mapping[str, ModelSettings], notes: list[str], tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._groups = groups
        self._notes = notes
        self._tell = tell
        self._said: set[str] = set()
        self._unlike: dict[tuple[str, str], tuple[int, str, str]] = {}
        """By group and server: how many calls, what was said to the first, and the note."""
        self._lost = LostMessages(group for group, settings in groups.items() if settings.traits.remote)
        self._last: dict[tuple[str, str], tuple[SampleKey, bytes]] = {}
        self._pairs = {group: _Pairs() for group in groups}
        self._sampling = {group: settings.sampling() for group, settings in groups.items()}

    def note(self, line: str, about: str | None = None) -> None:
        """Say it once, at once and in the log. `about` is one for all lines of which only the first is said."""
        if line not in self._notes and about not in self._said:
            if about is not None:
                self._said.add(about)
            self._notes.append(line)
            log.warning("%s", line)
            self._tell(line)

    def unlike(self, group: str, server: str, calls: int, said: str) -> None:
        """One of several servers did not take so many more calls, which others took; `said`: to the last of them."""
        key = group, server
        before, first, line = self._unlike.get(key, (0, said, ""))
        now = before + calls
        many = "1 call" if now == 1 else f"{now:,} calls"
        new = (
            f"{server} did not take {many} of models.{group} that its other servers took; the first: {first}; leave "
            f"{server} out of models.{group}.base_url, or make it as the others are"
        )
        self._unlike[key] = now, first, new
        if not before:
            self.note(new)
            return
        self._notes[self._notes.index(line)] = new
        if now.bit_length() > before.bit_length():  # the log has it at once, and each time that it is twice as many
            log.warning("%s", new)

    def gave_fewer(self, group: str) -> None:
        """A call for several answers got fewer."""
        self.note(
            f"the server of {group} ignores `n`: it gives fewer answers to a call than are asked for; the missing ones "
            "are asked for in calls of their own, each of which pays for the prompt"
        )

    def answered(self, request: Request, completion: Completion) -> None:
        """Look at one answer."""
        group = request.group
        settings, sampling = self._groups[group], self._sampling[group]
        for kind in completion.altered:
            self.note(_ALTERED.get(kind, "an answer was changed on arrival: {kind}").format(kind=kind, group=group))
        if any(choice.text is None and choice.finish_reason == "length" for choice in completion.choices):
            self.note(f"{group}: {settings.cut_before_a_word(group)}")
        if completion.from_cache:
            return
        wanted = sampling.get("n")
        if isinstance(wanted, int) and len(completion.choices) < wanted and "error" not in completion.other:
            self.gave_fewer(group)
        if sampling.get("logprobs") and _lacks_logprobs(completion):
            self.note(f"the server of {group} gives no log-probabilities, which models.{group}.logprobs asks for")
        if sampling.get("seed") is not None:
            self._compare(request, completion, sampling["seed"])
        counted = self._lost.counted(request, completion)
        if counted is not None:
            self.note(_lost_text(request, settings, counted), f"lost messages of {group}")

    def _compare(self, request: Request, completion: Completion, seed: object) -> None:
        """Notice that all other samples of a prompt get the answer that one got before."""
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
            times = "once, and no other" if pairs.same == 1 else f"{pairs.same} times, and never another"
            self.note(
                f"{group} gave the same prompt the same answer as before, {times}: models.{group}.seed is "
                f"fixed ({seed}), and retries and repeats may all get one answer; leave the seed out to get others",
                f"same answers of {group}",
            )


def _lacks_logprobs(completion: Completion) -> bool:
    """Whether a server's answer has a text, and says nothing of the likelihood of its tokens."""
    return completion.body is not None and any(c.text for c in completion.choices) and not has_logprobs(completion)


def _lost_text(request: Request, settings: ModelSettings, counted: int) -> str:
    """That a message was lost on the way to the model, with what is not yet done against it."""
    key, sample = f"models.{request.group}", request.sample
    size = sum(byte_length(message["content"]) for message in request.messages)
    roles = ", ".join(message["role"] for message in request.messages)
    untried = [
        *([f"{key}.chat_format=alternating"] if settings.chat_format != "alternating" else []),
        *([f"{key}.system_role=user, if the model knows no system messages"] if settings.system_role != "user" else []),
    ]
    advice = f"try {', and '.join(untried)}" if untried else "look at its chat template, or take another model"
    return (
        f"the server of model group {request.group} counted {counted} prompt tokens in {size:,} bytes of messages "
        f"({roles}; {sample.agent} in round {sample.round} on {sample.datapoint}): it lost text, most likely because "
        f"its chat template drops a message; {advice}. `nip-run render` shows what is sent"
    )
