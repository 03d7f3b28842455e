"""The model groups of a spec: keys that belong together, and what a budget must know of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import Problem
from runner.base.package_data import is_file, is_folder
from runner.base.storage.journal import JOURNAL
from runner.documents.dataclass_schema import from_plain
from runner.documents.layered_data import LayeredData
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.protocol import Protocol
from runner.models.api_keys import normalize_url
from runner.models.costs import answer_limit
from runner.models.extra_body import extra_body_problems
from runner.models.headers import header_problems
from runner.models.layers.budget import BudgetSettings
from runner.models.prices import listed_price, price_of
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.spec.checks.addresses import address_problem
from runner.spec.sound_spec import SoundSpec

ALTERNATIVES = 2
"""So many of the likeliest tokens may hold both verdicts, at least."""


def model_problems(layered: LayeredData, sound: SoundSpec, *, saved: bool) -> Iterator[Problem]:
    """What is wrong with each model group; `saved`: it was played, and is only read."""
    for name, settings in sound.mappings("models"):
        if f"models.{name}.provider" in sound.broken:
            continue
        traits = PROVIDERS[settings.get("provider", DEFAULT_PROVIDER)]
        if traits.needs_model and layered.data["models"][name].get("model") is None:
            yield _of_group(layered, name)(f"missing key: model (the name the server knows); add models.{name}.model")
        if settings.get("max_tokens") is not None and settings.get("max_completion_tokens") is not None:
            yield _of_group(layered, name, "max_tokens")(
                "max_tokens and max_completion_tokens are one limit; leave one out"
            )
        if settings.get("top_logprobs") is not None and not settings.get("logprobs"):
            yield _of_group(layered, name, "top_logprobs")("top_logprobs needs logprobs: true; add it")
        for key, alternative in traits.lacks.items():
            if _is_set(key, settings.get(key)):
                yield _of_group(layered, name, key)(f"provider {settings['provider']} has no {key}; {alternative}")
        if settings.get("chat_format") in traits.lacks_formats:
            yield _of_group(layered, name, "chat_format")(
                f"provider {settings['provider']} has no names of senders; set {traits.chat_format} or leave it out"
            )
        if traits.needs_limit and settings.get("max_tokens") is None and settings.get("max_completion_tokens") is None:
            yield _of_group(layered, name)(
                f"missing key: max_tokens (provider {settings['provider']} needs it); add models.{name}.max_tokens"
            )
        if settings.get("answer_words") is not None and not traits.drawn:
            yield _of_group(layered, name, "answer_words")(
                "is for `dummy`: a model is asked for so many words by agents.*.max_response_words; leave it out"
            )
        yield from _sharing_problems(layered, name, settings)
        yield from _server_problems(layered, name, settings)
        if not saved:
            yield from _extra_problems(layered, name, settings)
        if traits.needs_run:
            yield from _replay_problems(layered, name, settings, saved=saved)


def verdict_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """What keeps the probability of a verdict from being read in the log-probabilities of its tokens."""
    if not from_plain(VerdictSettings, sound.section("verdict")).reads_logprobs:
        return
    place = layered.place(("verdict", "confidence"))
    format_ = from_plain(DecisionFormat, sound.section("decision_format"))
    accept, reject = format_.accept.lower(), format_.reject.lower()
    if accept.startswith(reject) or reject.startswith(accept):
        message = (
            "one verdict's text begins with the other's, so that no token tells them apart; change decision_format"
        )
        yield Problem(place, "verdict.confidence", message)
    group = sound.section("agents", protocol.verifier_name).get("model")
    settings = dict(sound.mappings("models")).get(group) if isinstance(group, str) else None
    if settings is None or PROVIDERS[settings.get("provider", DEFAULT_PROVIDER)].needs_run:
        return
    provider = settings.get("provider", DEFAULT_PROVIDER)
    if "logprobs" in PROVIDERS[provider].lacks:
        message = f"provider {provider} gives no log-probabilities; set verdict.confidence=stated"
        yield Problem(place, "verdict.confidence", message)
        return
    lacks = [] if settings.get("logprobs") else [f"models.{group}.logprobs=true"]
    if (settings.get("top_logprobs") or 0) < ALTERNATIVES:
        lacks.append(f"models.{group}.top_logprobs=5")
    if lacks:
        message = f"reads the log-probabilities of {protocol.verifier_name}'s model; set {' and '.join(lacks)}"
        yield Problem(place, "verdict.confidence", message)


def _is_set(key: str, value: Any) -> bool:
    """Return whether a key changes what is asked for: one answer to a call is what every provider gives."""
    return not (value is None or value is False or (key == "n" and value == 1))


def _of_group(layered: LayeredData, *at: str) -> Callable[[str], Problem]:
    """What is wrong with a model group, or with one of its keys."""
    path = ("models", *at)
    return lambda message: Problem(layered.place(path), ".".join(path), message)


def _sharing_problems(layered: LayeredData, name: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    if not settings.get("share_prompts"):
        return
    problem = _of_group(layered, name, "share_prompts")
    if (settings.get("n") or 1) != 1:
        yield problem("share_prompts sets n itself; leave n out")
    if settings.get("batch"):
        yield problem("a batch asks for one answer a line; leave share_prompts out")


def _server_problems(layered: LayeredData, name: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    said = settings.get("base_url")
    problem = _of_group(layered, name, "base_url")
    urls: list[str] = said if isinstance(said, list) else [] if said is None else [said]
    seen: dict[str, str] = {}
    for url in urls:
        wrong = address_problem(url) if url != NOT_PUBLISHED else None
        if wrong is not None:
            yield problem(f"{url}: {wrong}" if len(urls) > 1 else wrong)
        elif url != NOT_PUBLISHED:
            server = normalize_url(url)
            if server in seen:
                as_well = "" if seen[server] == url else f", as {seen[server]} too"
                yield problem(f"{url} stands here twice{as_well}; leave one out")
            seen.setdefault(server, url)
    if len(urls) > 1 and settings.get("batch"):
        yield problem("a batch is sent to one server and found again there; give one address")
    for header, message in header_problems(settings.get("headers") or {}, name):
        yield _of_group(layered, name, "headers", header)(message)


def _extra_problems(layered: LayeredData, name: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    body, priced = settings.get("extra_body") or {}, settings.get("price") is not None
    tiers = _listed_tiers(settings) if "service_tier" in body and not priced else ()
    for key, message in extra_body_problems(body, name, priced=priced, tiers=tiers):
        yield _of_group(layered, name, "extra_body", key)(message)


def _listed_tiers(settings: Mapping[str, Any]) -> Collection[str]:
    """The service tiers that the price list knows for a model."""
    model, address = settings.get("model"), settings.get("base_url")
    if not isinstance(model, str) or not isinstance(address, str | None):
        return ()
    provider = settings.get("provider", DEFAULT_PROVIDER)
    listed = listed_price(ModelSettings(provider=provider, model=model, base_url=address))
    return () if listed is None else tuple(listed.tiers)


def _replay_problems(layered: LayeredData, name: str, settings: Mapping[str, Any], *, saved: bool) -> Iterator[Problem]:
    run = settings.get("run")
    if run is None:
        yield _of_group(layered, name)(f"missing key: run (the folder of the run to replay); add models.{name}.run")
    elif saved and not package_data.exists(replay_folder(layered, name)):
        return  # the run has all its answers in its own journal, and may have been got without the one that it replays
    elif not is_folder(replay_folder(layered, name)):
        yield _of_group(layered, name, "run")(f"no run folder {run!r}; `nip-run runs` lists those there are")
    elif not _can_be_read(replay_folder(layered, name) / JOURNAL):
        message = f"{run!r} has no {JOURNAL} that can be read; give the folder of a run of games"
        yield _of_group(layered, name, "run")(message)


def _can_be_read(path: Path) -> bool:
    """Whether a path is that of a regular file that may be read: a FIFO would keep us waiting."""
    return is_file(path) and os.access(path, os.R_OK)


def budget_problems(layered: LayeredData, sound: SoundSpec, asked: Collection[str] | None = None) -> Iterator[Problem]:
    """What keeps the worst case of a call from being known before it is made; `asked`: of these groups alone."""
    budget = from_plain(BudgetSettings, sound.section("budget"))
    for name, data in sound.mappings("models"):
        if asked is not None and name not in asked:
            continue
        settings, problem = from_plain(ModelSettings, data), _of_group(layered, name)
        if not settings.traits.metered or settings.model is None or f"models.{name}.provider" in sound.broken:
            continue
        key = f"models.{name}"
        if budget.usd is not None and price_of(settings) is None:
            yield problem(f"unknown price for model {settings.model!r}, required by budget.usd; set {key}.price")
        if (budget.usd is not None or budget.tokens is not None) and answer_limit(settings) is None:
            yield problem(f"with a budget, each answer needs a limit; set {key}.max_completion_tokens (or max_tokens)")


def replay_folder(layered: LayeredData, group: str) -> Path:
    return layered.folder(("models", group, "run")) / str(layered.data["models"][group]["run"])
