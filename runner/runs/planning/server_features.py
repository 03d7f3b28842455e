"""Checks which features the server of a model group supports, with a few short requests, for `check --live`.

The first request tries all features at once. If the server refuses it, the second request has the same form as in
games, and then one request follows for each feature. All requests pass through the layers that games use, so they have
the same errors, retries and budget.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from runner.base.async_runner import close_all
from runner.base.errors import BudgetExhausted, CallError, NipRunError, ProviderRefusal, RunError
from runner.base.text import in_one_line
from runner.game.prompts.chat import ChatMessage
from runner.models.admission import LocalAdmission
from runner.models.call_events import CallEvents
from runner.models.client import ModelConnector
from runner.models.costs import CallCosts, answer_limit
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.budget import Budget
from runner.models.logprobs import has_logprobs
from runner.models.request_body import schema_parameters
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings
from runner.models.usage_totals import UsageTotals

SYSTEM, CONSECUTIVE, LOGPROBS, N, SCHEMA = (
    "system message", "messages in a row", "log-probabilities", "n", "constrained output",
)  # fmt: skip
FEATURES = (SYSTEM, CONSECUTIVE, LOGPROBS, N, SCHEMA)
"""Features of a server: it uses a system message, takes two user messages without an answer between them, reports
log-probabilities, returns several answers to one request, and can be forced to answer in JSON of a given schema."""

_KEY_OF_FEATURE = {LOGPROBS: "logprobs", N: "n"}
MAX_ATTEMPTS, MAX_SECONDS = 3, 60.0
DEFAULT_LIMIT = 512
"""The maximum number of tokens of an answer if the spec sets none."""
_CODE_WORDS = ("harbor", "lantern")
"""The words that the system message and the first user message contain, and that an answer to both repeats."""
_TEXTS = (
    f"The first code word is {_CODE_WORDS[0]}.", f"The second code word is {_CODE_WORDS[1]}.",
    "Write both code words and nothing else.",
)  # fmt: skip
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"first_word": {"type": "string"}, "second_word": {"type": "string"}},
    "required": ["first_word", "second_word"],
    "additionalProperties": False,
}


class Finding(NamedTuple):
    """Whether a server supports a feature, or None if that is unknown; and the reason for False or None."""

    supported: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """A request that tries some features. Apart from what these features need, its settings are those of the group."""

    settings: ModelSettings
    messages: tuple[ChatMessage, ...]
    n: int = 1

    def request(self, group: str) -> Request:
        return Request(group, self.messages, SampleKey("check", 0, 0, group, 0), n=self.n)


@dataclass
class ServerReport:
    """The results of a check of one server of a model group."""

    group: str
    settings: ModelSettings
    completion: Completion | None = None
    """The first answer."""
    features: dict[str, Finding] = field(default_factory=dict)
    failed_attempts: list[str] = field(default_factory=list)
    """The errors of attempts that were repeated."""
    spent: UsageTotals = field(default_factory=UsageTotals)
    error: NipRunError | None = None
    """The error of the request in the form that games send; if it is None, the server answered."""


class _FailureList(CallEvents):
    """Collects the errors of failed attempts."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors

    async def on_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        del request, attempt
        if wait >= 0:
            self._errors.append(str(error))


def settings_to_check(settings: ModelSettings) -> Iterator[ModelSettings]:
    """Yield the settings for the check of each server of a group: without batches, and with a limit for answers.

    A group that calls no server has none.
    """
    if not settings.traits.remote:
        return
    limit: dict[str, Any] = {} if answer_limit(settings) is not None else {settings.length_limit_key: DEFAULT_LIMIT}
    for server in settings.settings_per_server:
        yield replace(server, batch=False, timeout=min(server.timeout, MAX_SECONDS), **limit)


def probes_of(settings: ModelSettings) -> list[Probe]:
    """Return the requests of a check in their order. If the server accepts the first one, the others are not sent."""
    features = _requested_features(settings)
    return [make_probe(settings, names) for names in (features, (), *((name,) for name in features))]


def _requested_features(settings: ModelSettings) -> tuple[str, ...]:
    return tuple(name for name in FEATURES if _KEY_OF_FEATURE.get(name) not in settings.traits.lacks)


def make_probe(settings: ModelSettings, features: Collection[str]) -> Probe:
    """Return a request that tries these features; without features, a request in the form that the games send."""
    is_alternating = settings.resolved_chat_format == "alternating"
    has_system = SYSTEM in features or not (is_alternating and settings.system_role == "user")
    texts = [[text] for text in _TEXTS]
    if is_alternating and CONSECUTIVE not in features:
        texts[1:] = [[*_TEXTS[1:]]]
    if not has_system:
        texts[:2] = [[*texts[0], *texts[1]]]
    roles = ["system" if has_system and not index else "user" for index in range(len(texts))]
    messages = (ChatMessage(role=role, content="\n".join(lines)) for role, lines in zip(roles, texts, strict=True))
    changes: dict[str, Any] = {"system_role": "system"} if has_system and settings.system_role == "user" else {}
    if LOGPROBS in features:
        changes["logprobs"] = True
    if SCHEMA in features:
        changes["extra_body"] = {**(settings.extra_body or {}), **schema_parameters(settings, _SCHEMA)}
    return Probe(replace(settings, **changes), tuple(messages), 2 if N in features else 1)


def max_cost(group: str, probe: Probe, unconfirmed_prices: Collection[str] = ()) -> UsageTotals:
    """Return the maximum cost of one attempt of a request."""
    return CallCosts({group: probe.settings}, unconfirmed_prices).worst_case(probe.request(group))


async def check_server(
    group: str, settings: ModelSettings, retry: Retry, budget: Budget, unconfirmed_prices: Collection[str] = ()
) -> ServerReport:
    """Check the features of one server within the budget, and return the results."""
    report, spent_before = ServerReport(group, settings), budget.spent
    attempts = min(retry.transient.attempts, MAX_ATTEMPTS)
    seconds = min(retry.transient.total_seconds, MAX_SECONDS)
    retry = replace(retry, transient=replace(retry.transient, attempts=attempts, total_seconds=seconds))

    async def send(probe: Probe) -> Completion:
        groups, servers = {group: probe.settings}, Servers(1)
        admission = LocalAdmission(CallCosts(groups, unconfirmed_prices), servers, retry, budget)
        events = _FailureList(report.failed_attempts)
        connection = ModelConnector(groups, retry, servers, admission, events).connect()
        try:
            return await connection.complete(probe.request(group))
        finally:
            await close_all([connection.close, servers.close])

    features = _requested_features(settings)
    report.features = {name: Finding(False, "not in this provider's API") for name in FEATURES if name not in features}
    every_feature, plain, *single_features = probes_of(settings)
    try:
        try:
            report.completion = await send(every_feature)
            report.features |= {name: _read_feature(name, report) for name in features}
        except (ProviderRefusal, CallError) as error:
            if not _may_be_about_features(error):
                raise
            report.completion = await send(plain)
            for name, probe in zip(features, single_features, strict=True):
                report.features[name] = await _try_feature(name, report, send(probe))
    except NipRunError as error:
        report.error = error
    report.spent = budget.spent - spent_before
    return report


def _may_be_about_features(error: ProviderRefusal | CallError) -> bool:
    """Return whether the server may have refused a request because of its features, and not for another reason."""
    if isinstance(error, ProviderRefusal):
        return bool(error.changes) and not error.no_such_model  # a key or an account needs no change of the spec
    return error.status is not None and error.status != 429


async def _try_feature(name: str, report: ServerReport, pending_completion: Any) -> Finding:
    """Return whether the server supports a feature, from the answer to a request for this feature alone."""
    try:
        completion = await pending_completion
    except (BudgetExhausted, RunError) as error:
        return Finding(None, in_one_line(str(error).partition("\n")[0]))
    except (ProviderRefusal, CallError) as error:
        return Finding(False, in_one_line(str(error).partition("\n")[0]))
    return _read_feature(name, replace(report, completion=completion))


def _read_feature(name: str, report: ServerReport) -> Finding:
    completion = report.completion
    assert completion is not None
    if name == N:
        has_several = len(completion.choices) > 1
        return Finding(has_several, "" if has_several else "the server accepts it, but returns one answer")
    choice = next((choice for choice in completion.choices if choice.text), Choice("", None))
    text = choice.text or ""
    if not text.strip():
        if not any(choice.finish_reason == "length" for choice in completion.choices):
            return Finding(None, "the answer has no text")
        return Finding(None, f"the answer has no text: {report.settings.limit_advice(report.group)}")
    if name == LOGPROBS:
        return Finding(True) if has_logprobs(completion) else Finding(False, "the server accepts it, but returns none")
    if name == SCHEMA:
        if not _follows_schema(text) and choice.finish_reason == "length":
            key = f"models.{report.group}.{report.settings.length_limit_key}"
            return Finding(None, f"the answer reached the token limit before its end; set a higher {key}")
        return Finding(True) if _follows_schema(text) else Finding(False, "the answer does not follow the schema")
    first_word, second_word = _CODE_WORDS
    if (second_word if name == CONSECUTIVE else first_word) in text.casefold():
        return Finding(True)
    return Finding(None, "the server accepts it, but the answer does not show that the model read it")


def _follows_schema(text: str) -> bool:
    with suppress(ValueError):
        value = json.loads(text)
        required = set(_SCHEMA["required"])
        return isinstance(value, Mapping) and set(value) == required and all(isinstance(v, str) for v in value.values())
    return False
