"""Detects servers that do not do what a request asks for, and adds a note on each such problem to the run.

The notes appear in the run's result, its log and its progress display, each once per model group.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.models.interface import Completion, Request, SampleKey, byte_length
from runner.models.journal_records import messages_hash
from runner.models.logprobs import has_logprobs
from runner.models.plausible_usage import DroppedMessageCheck
from runner.models.settings import ModelSettings

log = logging.getLogger("nip_run.notes")

MAX_PROMPTS = 4096
"""The maximum number of prompts whose last answer is stored. Few are enough, because repeated prompts follow soon."""

SUSPICIOUS_PAIRS = 5
"""The number of equal pairs of short answers to report. Fewer can be chance, as with bare verdicts."""

LONG_ANSWER = 200
"""Even a single pair of equal answers is reported if the answers have at least this many characters."""

_ALTERATION_NOTES = {
    "choices": "the server of {group} returns more answers to a call than requested; nip-run ignores the extra ones",
    "secret": "nip-run removed a secret from an answer of {group} and marked the answer's record (`altered`)",
    "bytes": "nip-run repaired an answer of {group} that was not strict JSON or UTF-8, and marked it (`altered`)",
}
"""The note for each kind of change in `Completion.altered`."""


@dataclass
class _AnswerPairs:
    """The equal pairs of answers to the same prompt, for one model group with a fixed seed."""

    equal: int = 0
    is_settled: bool = False
    """Whether the check has ended, because two answers differed or the note was reported."""


class ServerProblemDetector:
    """Adds notes to a run, to its log and to its progress display. A group is a model group of the spec."""

    def __init__(
        self, groups: Mapping[str, ModelSettings], notes: list[str], on_note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Prepare the checks. New notes are appended to `notes` and passed to `on_note`."""
        self._groups = groups
        self._notes = notes
        self._on_note = on_note
        self._reported_subjects: set[str] = set()
        self._differing_servers: dict[tuple[str, str], tuple[int, str, str]] = {}
        """The number of refused calls, the first error and the current note, by group and server."""
        self._lost_messages = DroppedMessageCheck(group for group, settings in groups.items() if settings.traits.remote)
        self._last_answers: dict[tuple[str, str], tuple[SampleKey, bytes]] = {}
        """The sample and the hash of the last answer to each prompt, by group and hash of the prompt."""
        self._answer_pairs = {group: _AnswerPairs() for group in groups}
        self._first_models: dict[str, str | None] = {}
        """The model that the first answer of each group names; None once the note about several models was added."""
        self._sampling = {group: settings.request_parameters for group, settings in groups.items()}

    def note(self, line: str, subject: str | None = None) -> None:
        """Add a note, unless the run already has the same note or another one on the same subject."""
        if line not in self._notes and subject not in self._reported_subjects:
            if subject is not None:
                self._reported_subjects.add(subject)
            self._notes.append(line)
            log.warning("%s", line)
            self._on_note(line)

    def report_differing_server(self, group: str, server: str, refused_calls: int, error_text: str) -> None:
        """Report that one server of a group refused further calls that the group's other servers accepted.

        `error_text` is the server's last error. The note gives the total number of refused calls.
        """
        key = group, server
        previous_total, first_error, note = self._differing_servers.get(key, (0, error_text, ""))
        total = previous_total + refused_calls
        count = "1 call" if total == 1 else f"{total:,} calls"
        new_note = (
            f"{server} refused {count} of models.{group} that the group's other servers accepted (first error: "
            f"{first_error}); remove {server} from models.{group}.base_url, or configure it like the other servers"
        )
        self._differing_servers[key] = total, first_error, new_note
        if not previous_total:
            self.note(new_note)
            return
        self._notes[self._notes.index(note)] = new_note
        if total.bit_length() > previous_total.bit_length():  # log only if the number has reached another power of two
            log.warning("%s", new_note)

    def report_fewer_answers(self, group: str) -> None:
        """Report that a server returned fewer answers to a call than requested."""
        self.note(
            f"the server of {group} ignores `n` and returns fewer answers to a call than requested; nip-run requests "
            "the missing answers in separate calls, and each call pays for the prompt again"
        )

    def check_answer(self, request: Request, completion: Completion) -> None:
        """Check one answer, and report what the server did wrong."""
        group = request.group
        settings, sampling = self._groups[group], self._sampling[group]
        for kind in completion.altered:
            self.note(
                _ALTERATION_NOTES.get(kind, "an answer was changed on arrival: {kind}").format(kind=kind, group=group)
            )
        if any(choice.text is None and choice.finish_reason == "length" for choice in completion.choices):
            self.note(f"{group}: {settings.limit_advice(group)}")
        texts = [choice.text or "" for choice in completion.choices]
        # Some chat templates put the opening tag into the prompt.
        if any("</think>" in text or text.lstrip().startswith("<think>") for text in texts):
            self.note(
                f"answers of {group} contain the model's thoughts (<think>), so other agents see them, and verdicts in "
                "them count; turn thinking off, or start the server with its reasoning parser"
            )
        self._compare_models(group, completion)
        if completion.from_cache:
            return
        requested = sampling.get("n")
        if (
            isinstance(requested, int)
            and len(completion.choices) < requested
            and "error" not in completion.other_fields
        ):
            self.report_fewer_answers(group)
        if sampling.get("logprobs") and _lacks_logprobs(completion):
            self.note(
                f"the server of {group} returns no log-probabilities, although models.{group}.logprobs requests them; "
                "use another server, or remove this setting"
            )
        if sampling.get("seed") is not None:
            self._compare_with_previous_answer(request, completion, sampling["seed"])
        counted_tokens = self._lost_messages.check(request, completion)
        if counted_tokens is not None:
            self.note(_lost_messages_note(request, settings, counted_tokens), f"lost messages of {group}")

    def _compare_models(self, group: str, completion: Completion) -> None:
        """Report if the answers of a group name different models."""
        if completion.body is None or not completion.body.has_model:
            return
        first_model = self._first_models.setdefault(group, completion.model)
        if first_model is not None and first_model != completion.model:
            self._first_models[group] = None
            names = " and ".join(f"{name[:80]!r}" for name in sorted((first_model, completion.model)))
            self.note(
                f"answers of {group} name different models ({names}), so the results may be of a mixture of models; if "
                f"the provider has versions of the model, set models.{group}.model to one of them"
            )

    def _compare_with_previous_answer(self, request: Request, completion: Completion, seed: object) -> None:
        """Report if a model with a fixed seed always gives the same answer to a repeated prompt."""
        group, pairs = request.group, self._answer_pairs[request.group]
        texts = "\0".join(choice.text or "" for choice in completion.choices)
        if pairs.is_settled or not texts.strip("\0"):
            return
        prompt = (group, messages_hash(request.messages))
        digest = hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        sample, last_digest = self._last_answers.get(prompt, (request.sample, b""))
        if len(self._last_answers) >= MAX_PROMPTS:
            self._last_answers.clear()
        self._last_answers[prompt] = (request.sample, digest)
        if sample == request.sample or sample.datapoint != request.sample.datapoint:
            return
        if last_digest != digest:
            pairs.is_settled = True
            return
        pairs.equal += 1
        if len(texts) >= LONG_ANSWER or pairs.equal >= SUSPICIOUS_PAIRS:
            pairs.is_settled = True
            times = "the only time" if pairs.equal == 1 else f"all {pairs.equal} times"
            self.note(
                f"{group} returned the same answer to a repeated prompt, {times}: models.{group}.seed is fixed "
                f"({seed}), so all retries and repeats may get this answer; remove the seed to get different answers",
                f"same answers of {group}",
            )


def _lacks_logprobs(completion: Completion) -> bool:
    """Return whether a server's answer has text but no log-probabilities."""
    return completion.body is not None and any(c.text for c in completion.choices) and not has_logprobs(completion)


def _lost_messages_note(request: Request, settings: ModelSettings, counted_tokens: int) -> str:
    """Return the note for a server that seems to drop messages, with remedies that are not in the settings yet.

    `counted` is the number of prompt tokens that the server counted.
    """
    key, sample = f"models.{request.group}", request.sample
    size = sum(byte_length(message["content"]) for message in request.messages)
    roles = ", ".join(message["role"] for message in request.messages)
    untried = [
        *([f"{key}.chat_format=alternating"] if settings.chat_format != "alternating" else []),
        *([f"{key}.system_role=user, if the model knows no system messages"] if settings.system_role != "user" else []),
    ]
    advice = f"try {', and '.join(untried)}" if untried else "check the server's chat template, or use another model"
    return (
        f"the server of model group {request.group} counted {counted_tokens} prompt tokens in {size:,} bytes of "
        f"messages ({roles}; {sample.agent} in round {sample.round} on {sample.datapoint}): the model did not get all "
        "the text, most likely because the server's chat template drops a message; "
        f"{advice}. `nip-run render` shows the messages"
    )
