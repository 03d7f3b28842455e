"""The model groups of a spec: keys that belong together, and what a budget must know of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.documents.fields import from_plain
from runner.documents.layers import Layered
from runner.errors import Problem
from runner.models.costs import answer_limit
from runner.models.layers.budget import BudgetSettings
from runner.models.prices import price_of
from runner.models.providers.table import DEFAULT_PROVIDER, PROVIDERS
from runner.models.settings import ModelSettings
from runner.spec.checks.sound import Sound
from runner.storage.journal import JOURNAL


def model_problems(layered: Layered, sound: Sound) -> Iterator[Problem]:
    for name, settings in sound.mappings("models"):
        at: tuple[str, ...] = ("models", name)
        key = ".".join(at)
        if f"{key}.provider" in sound.broken:
            continue
        traits = PROVIDERS[settings.get("provider", DEFAULT_PROVIDER)]
        if traits.needs_model and layered.data["models"][name].get("model") is None:
            yield Problem(layered.place(at), key, "missing key: model (the name the server knows)")
        if settings.get("max_tokens") is not None and settings.get("max_completion_tokens") is not None:
            place = layered.place((*at, "max_tokens"))
            yield Problem(place, f"{key}.max_tokens", "set max_tokens or max_completion_tokens, not both")
        more = settings.get("extra_body")
        answers = settings.get("n") or (more.get("n") if isinstance(more, Mapping) else None) or 1
        if settings.get("share_prompts") and answers != 1:
            place = layered.place((*at, "share_prompts"))
            yield Problem(place, f"{key}.share_prompts", "share_prompts sets n itself; leave n out")
        if settings.get("share_prompts") and settings.get("batch"):
            place = layered.place((*at, "share_prompts"))
            yield Problem(place, f"{key}.share_prompts", "a batch asks for one answer a line; leave share_prompts out")
        if traits.needs_run:
            if settings.get("run") is None:
                yield Problem(layered.place(at), key, "missing key: run (the folder of the run to replay)")
            elif not replay_folder(layered, name).is_dir():
                yield Problem(layered.place((*at, "run")), f"{key}.run", f"no run folder {settings['run']!r}")
            elif not os.access(replay_folder(layered, name) / JOURNAL, os.R_OK):
                message = f"{settings['run']!r} has no {JOURNAL} that can be read; give the folder of a run of games"
                yield Problem(layered.place((*at, "run")), f"{key}.run", message)


def budget_problems(layered: Layered, sound: Sound) -> Iterator[Problem]:
    """What keeps the worst case of a call from being known before it is made."""
    budget = from_plain(BudgetSettings, sound.section("budget"))
    for name, data in sound.mappings("models"):
        settings, at = from_plain(ModelSettings, data), ("models", name)
        if not settings.traits.metered:
            continue
        key = ".".join(at)
        if budget.usd is not None and price_of(settings) is None:
            message = f"nobody knows the price of {settings.model!r}, and there is a budget.usd; set {key}.price"
            yield Problem(layered.place(at), key, message)
        if (budget.usd is not None or budget.tokens is not None) and answer_limit(settings) is None:
            message = f"with a budget, each answer needs a limit; set {key}.max_completion_tokens (or max_tokens)"
            yield Problem(layered.place(at), key, message)


def replay_folder(layered: Layered, group: str) -> Path:
    return layered.folder(("models", group, "run")) / str(layered.data["models"][group]["run"])
