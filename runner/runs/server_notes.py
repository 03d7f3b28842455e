"""What a server does otherwise than it was asked, noticed on its answers and said once for each model group."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

from runner.models.base import Completion, Request, SampleKey
from runner.models.records import messages_hash
from runner.models.settings import ModelSettings

log = logging.getLogger("nip_run.notes")

MAX_PROMPTS = 4096
"""So many prompts' last answers are kept: retries and repeats of one come close together."""

_ALTERED = {
    "secret": "an answer to {group} held a secret, which was removed; its record says so (`altered`)",
    "bytes": "an answer to {group} was no JSON or text to the letter, and was mended; its record says so (`altered`)",
}


class ServerNotes:
    """Adds to the notes of a run, and to its log."""

    def __init__(self, groups: Mapping[str, ModelSettings], notes: list[str]) -> None:
        self._groups = groups
        self._notes = notes
        self._last: dict[tuple[str, str], tuple[SampleKey, bytes]] = {}

    def note(self, line: str) -> None:
        """Say it once, and in the log."""
        if self.tell(line):
            log.warning("%s", line)

    def tell(self, line: str) -> bool:
        """Say it once; whether it is new."""
        if line in self._notes:
            return False
        self._notes.append(line)
        return True

    def gave_fewer(self, group: str) -> None:
        """A call for several answers got fewer."""
        self.note(
            f"the server of {group} ignores `n`: it gives fewer answers to a call than are asked for; those that lack "
            "are asked for in calls of their own, each of which pays for the prompt"
        )

    def answered(self, request: Request, completion: Completion) -> None:
        """Look at one answer."""
        group = request.group
        for kind in completion.altered:
            self.note(_ALTERED.get(kind, "an answer was changed on arrival: {kind}").format(kind=kind, group=group))
        if any(choice.text is None and choice.finish_reason == "length" for choice in completion.choices):
            self.note(
                f"the token limit of {group} went into reasoning, and no word of an answer came; raise "
                f"models.{group}.max_completion_tokens"
            )
        sampling = self._groups[group].sampling()
        wanted = sampling.get("n")
        if completion.from_cache:
            return
        if isinstance(wanted, int) and len(completion.choices) < wanted and "error" not in completion.other:
            self.gave_fewer(group)
        if sampling.get("seed") is not None:
            self._compare(request, completion, sampling["seed"])

    def _compare(self, request: Request, completion: Completion, seed: object) -> None:
        """Notice the very answer that another sample of the same prompt got before."""
        texts = "\0".join(choice.text or "" for choice in completion.choices)
        if not texts.strip("\0"):
            return
        prompt = (request.group, messages_hash(request.messages))
        digest = hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        sample, before = self._last.get(prompt, (request.sample, b""))
        if len(self._last) >= MAX_PROMPTS:
            self._last.clear()
        self._last[prompt] = (request.sample, digest)
        if before == digest and sample != request.sample and sample.datapoint == request.sample.datapoint:
            self.note(
                f"{request.group} gave one answer twice to the same prompt: with models.{request.group}.seed fixed "
                f"({seed}) a retry or a repeat gets the answer that was there before; leave the seed out to have others"
            )
