"""The facts of a release that lists and boards show: texts of limited length, from the manifest only.

`verify` and servers refuse a release whose facts cannot be shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import ReleaseError
from runner.base.text import shortened
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.lineage.nodes import node_from_release
from runner.registry.lineage.typed_facts import WrongFact, read_section, read_typed
from runner.registry.transports.listing import ReleaseEntry

TEXTS = ("kind", "benchmark", "protocol")
MAX_TEXT = 300
"""Maximum number of characters of each fact in `TEXTS`, and of a model's name."""
MAX_MODELS = 100
_TEXT_LENGTH = 200
"""Maximum number of characters of a fact that is shown."""
_MODELS_LENGTH = 1_000
"""Maximum number of characters of the list of models that is shown."""


def find_wrong_facts(entry: ReleaseEntry, release: Release) -> Iterator[str]:
    """Yield a message for the first fact in a manifest that is invalid or too long to be shown."""
    facts = release.facts
    try:
        if release.kind in (Kind.RUN, Kind.MODEL):
            node_from_release(entry, release)
        for name in TEXTS:
            if len(read_typed(facts, name, str) or "") > MAX_TEXT:
                raise WrongFact(f"{name} has {len(facts[name]):,} characters; at most {MAX_TEXT} are allowed")
        models = read_section(facts, "models")
        if len(models) > MAX_MODELS:
            raise WrongFact(f"models has {len(models):,} names; at most {MAX_MODELS} are allowed")
        for agent in models:
            if len(read_typed(models, agent, str) or "") > MAX_TEXT:
                raise WrongFact(f"a model has {len(models[agent]):,} characters; at most {MAX_TEXT} are allowed")
    except WrongFact as error:
        yield f"{entry.reference}: invalid facts of a {release.kind}: {error}"
    except ReleaseError as error:
        yield str(error)


def listed_facts(release: Release) -> dict[str, str | None]:
    """Return the facts in `TEXTS`, and the models as one text. Missing and invalid facts are None."""
    facts = release.facts
    values = {name: facts.get(name) for name in TEXTS}
    texts = {name: shortened(text, _TEXT_LENGTH) if isinstance(text, str) else None for name, text in values.items()}
    models = facts.get("models")
    models_text = None
    if isinstance(models, dict):
        pairs = [f"{agent}={name}" for agent, name in list(models.items())[:MAX_MODELS] if isinstance(name, str)]
        models_text = shortened(", ".join(pairs), _MODELS_LENGTH)
    return {**texts, "models": models_text}
