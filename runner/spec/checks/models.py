"""Check the model groups of a spec: keys that need or exclude each other, addresses, and prices that a budget needs."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.base import package_data
from runner.base.package_data import is_file, is_folder
from runner.base.problems import Problem
from runner.base.storage.log_lines import JOURNAL
from runner.base.text import comma_join
from runner.documents.dataclass_schema import from_plain
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.protocol import Protocol
from runner.models.api_keys import normalize_url
from runner.models.costs import answer_limit
from runner.models.extra_body import extra_body_problems
from runner.models.headers import header_problems
from runner.models.layers.budget import BudgetSettings
from runner.models.prices import listed_price, price_of
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, ProviderTraits
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.spec.sound_spec import SoundSpec

MIN_ALTERNATIVES = 2
"""Minimum of `top_logprobs`, since the likeliest tokens must include the tokens of both verdicts."""


_STANDARD_TIERS = ("default", "auto")
"""Service tiers at the standard price, and at the price of the tier that the server chooses and reports."""


_OTHER_CONSTRAINTS = frozenset({"response_format", "grammar", "json_schema", "structured_outputs", "guided_json"})
"""Fields of `extra_body` that constrain all answers of a model group."""


_KeyProblem = tuple[KeyPath, str]
"""A key of a model group, or an empty path for the group itself, and a message."""


def model_problems(layered: LayeredData, sound: SoundSpec, *, saved: bool) -> Iterator[Problem]:
    """Yield the problems of each model group. With `saved`, settings that new runs no longer accept are allowed."""
    for name, settings in sound.mappings("models"):
        if f"models.{name}.provider" in sound.broken:
            continue
        traits = PROVIDERS[settings.get("provider", DEFAULT_PROVIDER)]
        if traits.needs_model and layered.data["models"][name].get("model") is None:
            message = f"missing key: model (the name the server knows); add models.{name}.model"
            yield layered.problem_at(("models", name), message)
        problems = [*_key_problems(name, settings, traits), *_server_problems(name, settings)]
        if not saved:
            problems += _extra_body_problems(name, settings)
            problems += [*_constraint_problems(settings), *_tier_problems(settings)]
        if traits.needs_run:
            problems += _replay_problems(layered, name, settings, saved=saved)
        for key_path, message in problems:
            yield layered.problem_at(("models", name, *key_path), message)


def _key_problems(name: str, settings: Mapping[str, object], traits: ProviderTraits) -> Iterator[_KeyProblem]:
    """Yield keys that need or exclude each other, or that the provider needs or does not have."""
    has_limit = settings.get("max_tokens") is not None, settings.get("max_completion_tokens") is not None
    if all(has_limit):
        yield ("max_tokens",), "max_tokens and max_completion_tokens are the same limit; remove one"
    if settings.get("top_logprobs") is not None and not settings.get("logprobs"):
        yield ("top_logprobs",), "top_logprobs needs logprobs: true; add it"
    for key, alternative in traits.lacks.items():
        if _is_set(key, settings.get(key)):
            yield (key,), f"provider {settings['provider']} has no {key}; {alternative}"
    if settings.get("chat_format") in traits.lacks_formats:
        yield (
            ("chat_format",),
            f"provider {settings['provider']} has no sender names; set {traits.chat_format}, or remove chat_format",
        )
    if traits.needs_limit and not any(has_limit):
        yield (), f"missing key: max_tokens (provider {settings['provider']} needs it); add models.{name}.max_tokens"
    if settings.get("answer_words") is not None and not traits.generates_locally:
        yield (
            ("answer_words",),
            "answer_words works only with provider dummy; remove answer_words, and set agents.*.max_response_words",
        )
    if settings.get("share_prompts") and (settings.get("n") or 1) != 1:
        yield ("share_prompts",), "share_prompts sets n for each call; remove n"
    if settings.get("share_prompts") and settings.get("batch"):
        yield ("share_prompts",), "share_prompts does not work with batch; remove one of the two"


def verdict_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each setting that prevents the use of log-probabilities as the probability of a verdict."""
    key, alternative = "verdict.confidence", "set verdict.confidence=stated"
    if not from_plain(VerdictSettings, sound.section("verdict")).reads_logprobs:
        if not any(kind == "judge" for _, kind in protocol.selections):
            return
        key, alternative = "protocol.use", "choose another selector for `best_of` in the protocol"
    place = layered.place(tuple(key.split(".")))
    format_ = from_plain(DecisionFormat, sound.section("decision_format"))
    accept, reject = format_.accept.lower(), format_.reject.lower()
    if accept.startswith(reject) or reject.startswith(accept):
        message = "one verdict's text begins with the other's, so no token distinguishes them; change decision_format"
        yield Problem(place, key, message)
    judges_of_group: dict[str, str] = {}
    for judge in protocol.verifier_names:
        group = sound.section("agents", judge).get("model")
        if isinstance(group, str):
            judges_of_group.setdefault(group, judge)
    for group, judge in judges_of_group.items():
        settings = dict(sound.mappings("models")).get(group)
        for message in [] if settings is None else _logprob_problems(group, judge, settings, alternative):
            yield Problem(place, key, message)


def _logprob_problems(group: str, judge: str, settings: Mapping[str, Any], alternative: str) -> Iterator[str]:
    """Yield a message if a model group returns no log-probabilities. `judge` is a verifier that uses the group."""
    provider = settings.get("provider", DEFAULT_PROVIDER)
    if PROVIDERS[provider].needs_run:
        return
    if "logprobs" in PROVIDERS[provider].lacks:
        yield f"provider {provider} returns no log-probabilities; {alternative}"
        return
    missing = [] if settings.get("logprobs") else [f"models.{group}.logprobs=true"]
    if (settings.get("top_logprobs") or 0) < MIN_ALTERNATIVES:
        missing.append(f"models.{group}.top_logprobs=5")
    if missing:
        yield f"reads the log-probabilities of {judge}'s model; set {' and '.join(missing)}"


def _is_set(key: str, value: Any) -> bool:
    """Return whether a key changes the request. `n: 1` does not, because one answer per call is the default."""
    return not (value is None or value is False or (key == "n" and value == 1))


def _server_problems(name: str, settings: Mapping[str, Any]) -> Iterator[_KeyProblem]:
    base_url, key_path = settings.get("base_url"), ("base_url",)
    urls: list[str] = base_url if isinstance(base_url, list) else [] if base_url is None else [base_url]
    url_of_server: dict[str, str] = {}
    for url in urls:
        if url == NOT_PUBLISHED:
            continue
        reason = address_problem(url)
        if reason is not None:
            yield key_path, f"{url}: {reason}" if len(urls) > 1 else reason
            continue
        server = normalize_url(url)
        if server in url_of_server:
            spelling = "" if url_of_server[server] == url else f", also as {url_of_server[server]}"
            yield key_path, f"{url} is listed twice{spelling}; remove one"
        url_of_server.setdefault(server, url)
    if len(urls) > 1 and settings.get("batch"):
        yield key_path, "a batch needs exactly one server; set one address in base_url"
    for header, message in header_problems(settings.get("headers") or {}, name):
        yield ("headers", header), message


def _extra_body_problems(name: str, settings: Mapping[str, Any]) -> Iterator[_KeyProblem]:
    body, has_price = settings.get("extra_body") or {}, settings.get("price") is not None
    tiers = (_listed_tiers(settings) if "service_tier" in body and not has_price else None) or ()
    keys = [key for key, value in settings.items() if value is not None]
    for key, message in extra_body_problems(body, name, priced=has_price, tiers=tiers, keys=keys):
        yield ("extra_body", key), message


def _constraint_problems(settings: Mapping[str, Any]) -> Iterator[_KeyProblem]:
    """Yield keys that need or exclude `constrain_decisions`."""
    if not settings.get("constrain_decisions"):
        if settings.get("max_reasoning_length") is not None:
            yield ("max_reasoning_length",), "max_reasoning_length needs constrain_decisions: true; add it"
        return
    for key in sorted(_OTHER_CONSTRAINTS & (settings.get("extra_body") or {}).keys()):
        yield ("extra_body", key), "constrain_decisions sets the form of answers, too; remove one of the two"


def _tier_problems(settings: Mapping[str, object]) -> Iterator[_KeyProblem]:
    """Yield a problem if calls at the requested service tier would have the price of another tier."""
    tier, key = settings.get("service_tier"), ("service_tier",)
    if tier is None:
        return
    if settings.get("batch"):
        yield key, "batches have a price of their own and no service tier; remove one of service_tier and batch"
    elif settings.get("price") is None and tier not in _STANDARD_TIERS:
        tiers = _listed_tiers(settings)
        if tiers is not None and tier not in tiers:
            listed = comma_join(sorted({*_STANDARD_TIERS, *tiers}))
            message = f"the price list has no price of {settings['model']} at service tier {tier!r}, only at {listed}"
            yield key, f"{message}; choose one of them, or set price"


def _listed_tiers(settings: Mapping[str, Any]) -> Collection[str] | None:
    """Return the service tiers of a model that have prices of their own in the list; None if it is not listed."""
    model, address = settings.get("model"), settings.get("base_url")
    if not isinstance(model, str) or not isinstance(address, str | None):
        return None
    provider = settings.get("provider", DEFAULT_PROVIDER)
    listed = listed_price(ModelSettings(provider=provider, model=model, base_url=address))
    return None if listed is None else tuple(listed.tiers)


def _replay_problems(
    layered: LayeredData, name: str, settings: Mapping[str, object], *, saved: bool
) -> Iterator[_KeyProblem]:
    run, folder = settings.get("run"), replay_folder(layered, name)
    if run is None:
        yield (), f"missing key: run (the folder of the run to replay); add models.{name}.run"
    elif saved and not package_data.exists(folder):
        return  # A saved run has all answers in its own journal, so the replayed run may be missing.
    elif not is_folder(folder):
        yield ("run",), f"no run folder {run!r}; list all runs with `nip-run runs`"
    elif not (is_file(folder / JOURNAL) and os.access(folder / JOURNAL, os.R_OK)):  # a FIFO would block
        yield ("run",), f"{run!r} has no readable {JOURNAL}; set the folder of a run with games"


def budget_problems(layered: LayeredData, sound: SoundSpec, groups: Collection[str] | None = None) -> Iterator[Problem]:
    """Yield a problem for each group whose calls have no maximum cost, if a budget needs it. `groups`: only these."""
    budget = from_plain(BudgetSettings, sound.section("budget"))
    for name, data in sound.mappings("models"):
        if groups is not None and name not in groups:
            continue
        settings = from_plain(ModelSettings, data)
        if not settings.traits.metered or settings.model is None or f"models.{name}.provider" in sound.broken:
            continue
        key = f"models.{name}"
        if budget.usd is not None and price_of(settings) is None:
            message = f"unknown price for model {settings.model!r}, required by budget.usd; set {key}.price"
            yield layered.problem_at(("models", name), message)
        if (budget.usd is not None or budget.tokens is not None) and answer_limit(settings) is None:
            message = f"with a budget, each answer needs a limit; set {key}.max_completion_tokens (or max_tokens)"
            yield layered.problem_at(("models", name), message)


def replay_folder(layered: LayeredData, group: str) -> Path:
    """Return the folder of the run that a model group replays."""
    return layered.folder(("models", group, "run")) / str(layered.data["models"][group].get("run"))


_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.IGNORECASE)


def address_problem(url: str) -> str | None:
    """Return why an address is invalid, beyond what the schema checks; None if it is valid."""
    if not url.isprintable() or not url.isascii():
        return (
            "an address may contain only ASCII characters; write other characters in a path as %XX, and a host with "
            "other characters as its xn-- name"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"not an address: {error}; write an address such as http://localhost:8000/v1"
    if port == 0:
        return "not an address: no server can have port 0; write the port of your server"
    if parts.query or parts.fragment or "?" in url or "#" in url:
        return (
            "an address must end with its path, to which the path of a call is added; remove everything from ? or # on"
        )
    return _host_problem(parts.hostname or "", bracketed="[" in parts.netloc)


def _host_problem(host: str, *, bracketed: bool) -> str | None:
    if not host:
        return "not an address: the host is missing; write an address such as http://localhost:8000/v1"
    if bracketed:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return f"not an address: {host!r} is not an IPv6 address; correct it, or write the host's name"
        return None
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(map(_LABEL.match, labels)):
        return f"not an address: {host!r} is not a host name; correct it, or write an IP address"
    if labels[-1].isdigit():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return f"not an address: {host!r} is not an IPv4 address; correct it, or write the host's name"
    return None
