"""Warns about models that OpenAI shuts down, by the dates in `retirements.yaml`.

Specs and releases with such a model get the warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from runner.models.settings import ModelSettings

WARNING_DAYS: Final = 60
"""Number of days before a shutdown when warnings begin."""
DEPRECATIONS: Final = "https://developers.openai.com/api/docs/deprecations"
_HOST: Final = "api.openai.com"
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{4})\Z")


@cache
def shutdowns() -> Mapping[str, date]:
    """Return the shutdown date of each model in `retirements.yaml`."""
    text = resources.files("runner.models").joinpath("retirements.yaml").read_text("utf-8")
    rows: dict[date, list[str]] = yaml.safe_load(text)["shutdowns"]
    return {model: day for day, models in rows.items() for model in models}


def shutdown_of(model: str) -> date | None:
    """Return the shutdown date of a model at OpenAI, if known.

    A fine-tuned model or a snapshot without its own date has the date of its base model.
    """
    base = model.split(":")[1] if model.startswith("ft:") else model
    return shutdowns().get(base) or shutdowns().get(_SNAPSHOT.sub("", base))


def shutdown_of_group(settings: ModelSettings) -> date | None:
    """Return the shutdown date of a model group's model; None if it is unknown, or if the server is not OpenAI's own.

    Other servers may serve a model of this name forever. Azure's deployments have their own names and dates.
    """
    hosts = (urlsplit(url).hostname or "" for url in settings.server_urls)
    is_at_openai = settings.traits.remote and any(host == _HOST or host.endswith(f".{_HOST}") for host in hosts)
    return shutdown_of(settings.model) if is_at_openai and settings.model is not None else None


def model_shutdown_facts(models: Iterable[ModelSettings]) -> dict[str, object]:
    """Return the shutdown dates that a release records, by model; empty if there are none.

    The result does not depend on today's date, so that a release has the same bytes whenever it is built.
    """
    dates = {settings.name: str(day) for settings in models if (day := shutdown_of_group(settings)) is not None}
    return {"shutdowns": dict(sorted(dates.items()))} if dates else {}


def shutdown_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each model that `model_shutdown_facts` recorded."""
    for model, day in facts.get("shutdowns", {}).items():
        yield f"OpenAI shuts {model} down on {day}; after that, calls to it fail"


def retirement_warnings(groups: Mapping[str, ModelSettings], today: date | None = None) -> Iterator[str]:
    """Yield a warning for each group whose model was shut down, or will be within `WARNING_DAYS` days."""
    today = today or datetime.now(UTC).date()
    for group, settings in groups.items():
        shutdown = shutdown_of_group(settings)
        days = None if shutdown is None else (shutdown - today).days
        if days is None or days > WARNING_DAYS:
            continue
        event = f"shuts {settings.model} down on {shutdown}" if days > 0 else f"has shut {settings.model} down"
        when = f"in {days} days" if days > 1 else "tomorrow" if days == 1 else f"on {shutdown}, so calls to it fail"
        yield f"models.{group}: OpenAI {event} ({when}); choose another model, see {DEPRECATIONS}"
