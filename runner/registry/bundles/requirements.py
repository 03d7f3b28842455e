"""List what a user needs to play a fetched spec: the command, servers, keys and the rough cost.

`nip-run get` and `reproduce` show this list.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError
from runner.documents.fetched_files import fetched_registry
from runner.models.api_keys import NO_KEY, KeyUse, allow_options
from runner.models.settings import NOT_PUBLISHED
from runner.registry.bundles.missing_rows import ROWS_KEY, lacks_rows
from runner.registry.fetched_release import FetchedRelease
from runner.spec.loader import load_specs
from runner.training.key_usage import required_permissions
from runner.training.plan import plan_of
from runner.training.trainer_files import missing_lines
from runner.training.trust import estimate_run, missing_addresses, unconfirmed_prices

NO_APPROVAL_NEEDED = (KeyUse(NO_KEY, NOT_PUBLISHED),)
"""Requests that need no approval: they are sent without a key, to an address that the user gives."""


@dataclass(frozen=True)
class PlayRequirements:
    """The requirements for playing a fetched spec again."""

    command: str
    keys: tuple[KeyUse, ...] = ()
    """The API key that is sent to each server. The host is `???` if the user must set the server's address."""
    addresses: tuple[str, ...] = ()
    """Spec keys of server addresses that the user has to set."""
    calls: tuple[int, int] | None = None
    """The minimum and maximum number of calls, for the shortest and the longest games, without retries."""
    cost_usd: tuple[float, float] | None = None
    """The cost of these calls; None if the price of a model is unknown."""
    missing: tuple[str, ...] = ()
    """Files that the trainers need, but the release does not have."""
    prices: tuple[str, ...] = ()
    """Messages about the prices that the release sets, each with the known price."""
    problem: str | None = None
    """The reason why the spec cannot be played as it is; None if it can."""

    def fresh_command(self, command: str) -> str:
        """Return a `reproduce` command with the options that are needed to play the run again."""
        options = (f"--set {key}=http://HOST:PORT/v1" for key in self.addresses)
        return " ".join([command, "--fresh", *options, *allow_options(self.keys)])

    def to_json(self) -> dict[str, Any]:
        keys = [
            {"variable": use.variable, "host": use.host, "command": use.command, "files": list(use.files or ())}
            for use in self.keys
        ]
        return {**asdict(self), "keys": keys}


def reproduce_command(fetched: FetchedRelease) -> str:
    """Return the command that reproduces a fetched run, with the options for its registry and its dataset's rows."""
    arguments = ["nip-run", "reproduce", str(fetched.folder)]
    address = fetched_registry(fetched.folder) if fetched.is_training_run else None
    arguments += ["--from", address] if address else []
    arguments += ["--set", f"{ROWS_KEY}=FILE"] if lacks_rows(fetched) else []
    return shlex.join(arguments)


def find_requirements(folder: Path) -> PlayRequirements:
    """Return the requirements for playing the spec in a fetched folder, without contacting any server."""
    command = f"nip-run {shlex.quote(str(folder))}"
    try:
        plans = [plan_of(spec) for spec in load_specs(folder)]
        keys = tuple(sorted({use for plan in plans for use in required_permissions(plan)} - {*NO_APPROVAL_NEEDED}))
        addresses = tuple(dict.fromkeys(key for plan in plans for key in missing_addresses(plan)))
        estimates = [estimate for plan in plans for estimate in estimate_run(plan)]
        prices = tuple(dict.fromkeys(line for plan in plans for _, line in unconfirmed_prices(plan)))
    except NipRunError as error:
        return PlayRequirements(command, problem=str(error))
    options = [*(f"{key}=http://HOST:PORT/v1" for key in addresses), *allow_options(keys)]
    low, high = (sum(estimate.calls[index] for estimate in estimates) for index in (0, 1))
    costs = [estimate.cost_usd for estimate in estimates if estimate.cost_usd is not None]
    cost = (sum(low for low, _ in costs), sum(high for _, high in costs)) if len(costs) == len(estimates) else None
    missing = tuple(dict.fromkeys(line for plan in plans for line in missing_lines(plan.spec.trainer_files)))
    command = " ".join([command, *options])
    return PlayRequirements(command, keys, addresses, calls=(low, high), cost_usd=cost, missing=missing, prices=prices)
