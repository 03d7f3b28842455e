"""Checks what a plan may do: the keys it sends to servers, the programs it runs, and the number of calls it makes.

The check comes before any client is created and any file is written. A spec that the user wrote may do anything. For a
fetched (downloaded) spec, the user must allow each API key, host and program by name, and must set a budget if many
calls are possible.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.documents.dataclass_schema import to_plain
from runner.documents.fetched_files import describe_origin
from runner.models.api_keys import KeyUse, check_allowed, key_uses
from runner.models.prices import describe_price, listed_price, price_list_version
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.rollouts.estimate import CostEstimate, estimate_costs, sum_by_group
from runner.rollouts.plan import used_models
from runner.runs.finished.selection import ReplayOf, is_whole_replay
from runner.training.key_usage import key_uses_of, plugin_commands, required_permissions
from runner.training.plan import AnyPlan, TrainingPlan

MAX_CALLS = 10_000
"""The maximum number of calls of a fetched spec if the user has not set a budget."""


def keys_sent(plan: AnyPlan, replay: ReplayOf | None = None) -> tuple[KeyUse, ...]:
    """Return the environment variables that a run sends to servers and trainers; none for a full replay."""
    return () if is_whole_replay(replay) else key_uses_of(plan)


def check_trust(plan: AnyPlan, replay: ReplayOf | None, allowed: Collection[KeyUse], *, override: str = "") -> None:
    """Check that a plan may run.

    `override` is the option that the command has before KEY=VALUE, for messages.

    Raises:
        UsageError: a model has no address, or a fetched spec needs a permission that the user has not given.
    """
    if is_whole_replay(replay):
        if plan.spec.fetched is not None:  # a replay calls no provider, but computes metrics
            check_allowed(key_uses((), plugin_commands(plan.spec)), allowed, _this_spec(plan))
        return
    _check_addresses(plan, override)
    if plan.spec.fetched is None:
        return
    check_allowed(required_permissions(plan), allowed, _this_spec(plan))
    _check_prices(plan, override)
    _check_size(plan)


def _this_spec(plan: AnyPlan) -> str:
    """Return words for how a spec depends on fetched files, and where these files are."""
    root = plan.spec.fetched
    assert root is not None
    return f"this spec {describe_origin(plan.spec.path, root)} (in {root})"


def _remote_models(plan: AnyPlan) -> Iterator[tuple[str, ModelSettings]]:
    """Yield the model groups that are called or trained over a network."""
    models = plan.spec.experiment.models
    trained = plan.training.trainers if isinstance(plan, TrainingPlan) else ()
    for group in dict.fromkeys((*used_models(plan.games), *trained)):
        if group in models and models[group].traits.remote:
            yield group, models[group]


def missing_addresses(plan: AnyPlan) -> list[str]:
    """Return the spec keys of the missing addresses of all model groups that are called or trained."""
    return [f"models.{group}.base_url" for group, model in _remote_models(plan) if model.lacks_address]


def _check_addresses(plan: AnyPlan, override: str) -> None:
    keys = missing_addresses(plan)
    if keys:
        settings = " ".join(f"{override}{key}=http://HOST:PORT/v1" for key in keys)
        raise UsageError(
            f"{comma_join(keys)}: the value is {NOT_PUBLISHED}, because addresses are never published. Set the "
            f"address of your own server: {settings} (null for OpenAI)"
        )


def estimate_run(plan: AnyPlan) -> list[CostEstimate]:
    """Return an estimate of the calls, tokens and cost of all games of a run by model group; see `estimate_costs`."""
    return sum_by_group(estimate for games in plan.list_game_plans() for estimate in estimate_costs(games))


def unconfirmed_prices(plan: AnyPlan, override: str = "") -> Iterator[tuple[str, str]]:
    """Yield each model group whose price a fetched spec sets, with a message on how to confirm the price."""
    for group, settings in _remote_models(plan):
        price = settings.price
        if group in plan.spec.unconfirmed_prices and price is not None:
            listed, fields = listed_price(settings), to_plain(price)
            known_price = "no known price"
            if listed is not None:
                known_price = f"known price: {describe_price(listed, price)} ({price_list_version()})"
            tier = settings.requested_tier
            at_tier = "" if tier is None else f" at service tier {tier!r}"
            price_text = ", ".join(f"{name}: {value:g}" for name, value in fields.items() if value is not None)
            confirm = shlex.quote(f"models.{group}.price={{{price_text}}}")
            message = (
                f"models.{group}.price: the spec says {describe_price(price, listed)} for a million tokens of "
                f"{settings.model}{at_tier}; {known_price}. A budget uses the higher price. "
                f"If you have checked the spec's price, confirm it: {override}{confirm}"
            )
            yield group, message


def _check_prices(plan: AnyPlan, override: str) -> None:
    """Check that a budget in dollars does not depend on a price that only the fetched spec sets.

    Raises:
        UsageError: the budget depends on such a price.
    """
    if plan.spec.experiment.budget.usd is None:
        return
    models = plan.spec.experiment.models
    unknown = [line for group, line in unconfirmed_prices(plan, override) if listed_price(models[group]) is None]
    if unknown:
        raise UsageError(
            f"{_this_spec(plan)}, and budget.usd cannot limit its cost by a price that you have not confirmed; "
            f"nothing was sent.\n{chr(10).join(unknown)}"
        )


def _check_size(plan: AnyPlan) -> None:
    """Check that a fetched spec does not make more calls than a user may expect.

    Raises:
        UsageError: it may make more calls, and the user has not set a budget.
    """
    if any(key.partition(".")[0] == "budget" for key in plan.spec.overridden):
        return
    remote = {group for group, _ in _remote_models(plan)}
    remote_estimates = [estimate for estimate in estimate_run(plan) if estimate.group in remote]
    calls = sum(estimate.calls[1] for estimate in remote_estimates)
    if calls > MAX_CALLS:
        costs = [None if estimate.cost_usd is None else estimate.cost_usd[1] for estimate in remote_estimates]
        total = "an unknown price" if None in costs else f"at most ${sum(filter(None, costs)):,.2f}"
        raise UsageError(
            f"{_this_spec(plan)} and may make {calls:,} calls, for {total}; "
            "nothing was sent. Set a limit: budget.usd=N or budget.completions=N"
        )
