"""Lists what a user needs to run a fetched spec: the command, servers, keys and the rough cost.

`nip-run get` and `reproduce` show this list.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError
from runner.base.text import path_argument
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

EXAMPLE_ADDRESS = "http://HOST:PORT/v1"
NO_APPROVAL_NEEDED = {KeyUse(NO_KEY, NOT_PUBLISHED)}
"""Requests without a key to a server whose address is `???` (`NOT_PUBLISHED`): the user approves it by setting it."""


@dataclass(frozen=True)
class PlayRequirements:
    """The requirements for running a fetched spec again. `nip-run get --json` prints the fields under their names."""

    command: str
    keys: tuple[KeyUse, ...] = ()
    """The API key that is sent to each server. The host is `???` if the user must set the server's address."""
    addresses: tuple[str, ...] = ()
    """Spec keys, such as `models.NAME.base_url`, whose values are server addresses that the user has to set."""
    calls: tuple[int, int] | None = None
    """The minimum and maximum number of calls, for the shortest and the longest games, without retries."""
    cost_usd: tuple[float, float] | None = None
    """The cost of these calls; None if the price of a model is unknown."""
    missing: tuple[str, ...] = ()
    """Messages about files that the trainers need, but the release does not have."""
    prices: tuple[str, ...] = ()
    """Messages about the prices that the release sets, each with the known price."""
    problem: str | None = None
    """The reason why the spec cannot be run as it is; None if it can."""

    def add_fresh_options(self, reproduce_command: str) -> str:
        """Return the command with `--fresh`, which plays all games again, and the options that these games need."""
        options = (f"--set {key}={EXAMPLE_ADDRESS}" for key in self.addresses)  # other commands need no `--set`
        return " ".join([reproduce_command, "--fresh", *options, *allow_options(self.keys)])

    def to_json(self) -> dict[str, Any]:
        keys = [
            {"variable": use.variable, "host": use.host, "command": use.command, "files": list(use.files or ())}
            for use in self.keys
        ]
        return {**asdict(self), "keys": keys}


def reproduce_command(fetched: FetchedRelease) -> str:
    """Return the command that reproduces a fetched run, with the options for its registry and its dataset's rows."""
    arguments = ["nip-run", "reproduce", path_argument(fetched.folder)]
    address = fetched_registry(fetched.folder) if fetched.is_training_run else None
    arguments += ["--from", address] if address else []
    arguments += ["--set", f"{ROWS_KEY}=FILE"] if lacks_rows(fetched) else []
    return shlex.join(arguments)


def find_requirements(folder: Path) -> PlayRequirements:
    """Return the requirements for running the spec in a fetched folder, without contacting any server."""
    command = f"nip-run {shlex.quote(path_argument(folder))}"
    try:
        plans = [plan_of(spec) for spec in load_specs(folder)]
        permissions = {use for plan in plans for use in required_permissions(plan)}
        address_keys = tuple(dict.fromkeys(key for plan in plans for key in missing_addresses(plan)))
        estimates = [estimate for plan in plans for estimate in estimate_run(plan)]
        price_messages = tuple(dict.fromkeys(line for plan in plans for _, line in unconfirmed_prices(plan)))
    except NipRunError as error:
        return PlayRequirements(command, problem=str(error))
    keys = tuple(sorted(permissions - NO_APPROVAL_NEEDED))
    min_calls, max_calls = (sum(estimate.calls[index] for estimate in estimates) for index in (0, 1))
    costs = [estimate.cost_usd for estimate in estimates if estimate.cost_usd is not None]
    min_cost, max_cost = (sum(cost[index] for cost in costs) for index in (0, 1))
    cost = (min_cost, max_cost) if len(costs) == len(estimates) else None
    missing = tuple(dict.fromkeys(line for plan in plans for line in missing_lines(plan.spec.trainer_files)))
    overrides = [f"{key}={EXAMPLE_ADDRESS}" for key in address_keys]
    command = " ".join([command, *overrides, *allow_options(keys)])
    return PlayRequirements(command, keys, address_keys, (min_calls, max_calls), cost, missing, price_messages)
