"""What it takes to play what was got: the command, what that would contact and send, and roughly what it costs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError
from runner.documents.fetched_files import where_from
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.models.api_keys import NO_KEY, KeyUse, forms_of
from runner.models.settings import NOT_PUBLISHED
from runner.registry.bundles.missing_rows import OPTION, lacks_rows
from runner.registry.fetched_release import FetchedRelease
from runner.spec.loader import load_specs
from runner.training.key_usage import to_allow
from runner.training.plan import plan_of
from runner.training.trainer_files import missing_lines
from runner.training.trust import asked_for, missing_addresses, stranger_prices

NOT_ASKED = (KeyUse(NO_KEY, NOT_PUBLISHED),)
"""A server whose address is to be given is approved by that."""


@dataclass(frozen=True)
class PlayRequirements:
    """What playing a got spec anew takes."""

    command: str
    keys: tuple[KeyUse, ...] = ()
    """What is sent where, servers too that get no key; the host is `???` where the address is to be given."""
    addresses: tuple[str, ...] = ()
    """The keys that say where models are served, which are to be given."""
    calls: tuple[int, int] | None = None
    """From the shortest games to the longest, without retries."""
    cost_usd: tuple[float, float] | None = None
    """None: the price of a model is unknown."""
    missing: tuple[str, ...] = ()
    """What its trainers need and the release does not have."""
    prices: tuple[str, ...] = ()
    """Messages about the prices that the release sets, each with the known price."""
    problem: str | None = None
    """Why it cannot be played as it is."""

    def fresh(self, command: str) -> str:
        """A `reproduce` of it with what has to be given to play it anew."""
        given = (f"--set {key}=http://HOST:PORT/v1" for key in self.addresses)
        return " ".join([command, "--fresh", *given, *forms_of(self.keys)])

    def to_json(self) -> dict[str, Any]:
        keys = [
            {"variable": use.variable, "host": use.host, "command": use.command, "files": list(use.files or ())}
            for use in self.keys
        ]
        return {**asdict(self), "keys": keys}


def to_reproduce(got: FetchedRelease) -> str:
    """The command that reproduces a got run, with what has to be given: its registry for the parts, or its rows."""
    words = ["nip-run", "reproduce", str(got.folder)]
    where = where_from(got.folder) if got.is_training_run else None
    words += ["--from", where] if where else []
    words += ["--set", f"{OPTION}=FILE"] if lacks_rows(got) else []
    return shlex.join(words)


def what_it_takes(folder: Path) -> PlayRequirements:
    """Of a folder that `get` left; nothing is asked."""
    command = f"nip-run {shlex.quote(str(folder))}"
    try:
        plans = [plan_of(spec) for spec in load_specs(folder)]
        keys = tuple(sorted({use for plan in plans for use in to_allow(plan) if use not in NOT_ASKED}))
        addresses = tuple(dict.fromkeys(key for plan in plans for key in missing_addresses(plan)))
        asked = [one for plan in plans for one in asked_for(plan)]
        prices = tuple(dict.fromkeys(line for plan in plans for _, line in stranger_prices(plan)))
    except NipRunError as error:
        return PlayRequirements(command, problem=str(error))
    options = [
        *(f"{key}=http://HOST:PORT/v1" for key in addresses),
        *forms_of(keys),
    ]
    low, high = (sum(one.calls[end] for one in asked) for end in (0, 1))
    known = [one.cost_usd for one in asked if one.cost_usd is not None]
    cost = (sum(one[0] for one in known), sum(one[1] for one in known)) if len(known) == len(asked) else None
    missing = tuple(dict.fromkeys(line for plan in plans for line in missing_lines(plan.spec.trainer_files)))
    return PlayRequirements(" ".join([command, *options]), keys, addresses, (low, high), cost, missing, prices)


NAMED: Mapping[Kind, str] = {
    Kind.PROTOCOL: "protocol: {{use: {0}}}",
    Kind.PROMPTS: "prompts: {0}",
    Kind.DATASET: "dataset: {{path: {0}}}",
    Kind.AGENT: "agents: {{NAME: {{use: {0}}}}}",
    Kind.TRAINER: "training: {{trainers: {{GROUP: {{use: {0}}}}}}}",
    Kind.SPEC: "extends: {0}",
    Kind.MODEL: "models: {{GROUP: {{use: {0}}}}}",
}
"""How a spec names a component of each kind."""


def as_named(release: Release) -> str:
    """How a spec names a component, once it is installed."""
    reference = release.reference
    return NAMED[release.kind].format(f"{reference.owner}/{reference.name}@{reference.version}")
