"""What lists and boards show of a release without its files: texts of a bounded length, whatever its manifest says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.text import shortened
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.lineage.session_facts import WrongFact, typed
from runner.registry.lineage.sessions import session_of_release
from runner.registry.transports.listing import ReleaseEntry

TEXTS = ("kind", "benchmark", "protocol")
MOST_TEXT = 300
"""Characters of one of them, and of one model."""
MOST_MODELS = 100
_SHOWN, _SHOWN_MODELS = 200, 1_000


def wrong_facts(entry: ReleaseEntry, release: Release) -> Iterator[str]:
    """What a manifest says of its release that no list and no board can show."""
    facts = release.facts
    try:
        if release.kind in (Kind.RUN, Kind.MODEL):
            session_of_release(entry, release)
        for name in TEXTS:
            if len(typed(facts, name, str) or "") > MOST_TEXT:
                raise WrongFact(f"{name} has {len(facts[name]):,} characters; at most {MOST_TEXT} are taken")
        models: Mapping[str, Any] = typed(facts, "models", dict) or {}
        if len(models) > MOST_MODELS:
            raise WrongFact(f"models has {len(models):,} names; at most {MOST_MODELS} are taken")
        for agent in models:
            if len(typed(models, agent, str) or "") > MOST_TEXT:
                raise WrongFact(f"a model has {len(models[agent]):,} characters; at most {MOST_TEXT} are taken")
    except WrongFact as error:
        yield f"{entry.reference}: its facts are not those of a {release.kind}: {error}"
    except ReleaseError as error:
        yield str(error)


def listed_facts(release: Release) -> dict[str, str | None]:
    """`TEXTS`, and `models` in one text; None for what is not said, or is no text."""
    facts = release.facts
    said = {name: facts.get(name) for name in TEXTS}
    shown = {name: shortened(text, _SHOWN) if isinstance(text, str) else None for name, text in said.items()}
    models = facts.get("models")
    told = None
    if isinstance(models, dict):
        pairs = [f"{agent}={name}" for agent, name in list(models.items())[:MOST_MODELS] if isinstance(name, str)]
        told = shortened(", ".join(pairs), _SHOWN_MODELS)
    return {**shown, "models": told}
