"""What a plan of either kind may do: where it sends what, which programs it runs, how much it asks for.

It is looked at before any client is made, and before anything is written. What a user wrote may do all of it; of what
came from elsewhere each key, host and program must be allowed by name, and so must a large bill.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.documents.dataclass_schema import to_plain
from runner.documents.fetched_files import from_elsewhere
from runner.models.api_keys import KeyUse, check_allowed
from runner.models.prices import describe_price, list_version, listed_price
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.rollouts.estimate import CostEstimate, estimates, total_cost
from runner.runs.execution.spending import used_models
from runner.runs.finished.selection import ReplayOf
from runner.training.key_usage import key_uses_of, to_allow
from runner.training.plan import AnyPlan, TrainingPlan

MAX_CALLS = 10_000
"""The most calls that a spec from elsewhere makes without a budget that the user gives."""


def keys_sent(plan: AnyPlan, replay: ReplayOf | None = None) -> tuple[KeyUse, ...]:
    """Which variables a run of a plan sends where; a whole replay asks nobody."""
    return () if is_whole_replay(replay) else key_uses_of(plan)


def is_whole_replay(replay: ReplayOf | None) -> bool:
    """Whether all answers are another run's, so that nobody is asked."""
    return replay is not None and replay.until_round is None


def check_trust(plan: AnyPlan, replay: ReplayOf | None, allowed: Collection[KeyUse], *, override: str = "") -> None:
    """See that a run of a plan may do what it would; `override` is what the command has before a KEY=VALUE.

    Raises:
        UsageError: it does not say where a model is served; or came from elsewhere, and would send, run or ask for what
            was not allowed.
    """
    if is_whole_replay(replay):
        return
    _check_addresses(plan, override)
    if plan.spec.fetched is None:
        return
    check_allowed(to_allow(plan), allowed, _this_spec(plan))
    _check_prices(plan, override)
    _check_size(plan)


def _this_spec(plan: AnyPlan) -> str:
    """How a spec has to do with what came from elsewhere, and where that is."""
    root = plan.spec.fetched
    assert root is not None
    return f"this spec {from_elsewhere(plan.spec.path, root)} (it is in {root})"


def _asked(plan: AnyPlan) -> Iterator[tuple[str, ModelSettings]]:
    """The model groups that are asked over a network, or trained there."""
    models = plan.spec.experiment.models
    trained = plan.training.trainers if isinstance(plan, TrainingPlan) else ()
    for group in dict.fromkeys((*used_models(plan.games), *trained)):
        if group in models and models[group].traits.remote:
            yield group, models[group]


def missing_addresses(plan: AnyPlan) -> list[str]:
    """The keys that say where a model is served, of the groups that are asked, where that was left out."""
    return [f"models.{group}.base_url" for group, model in _asked(plan) if model.is_unserved]


def _check_addresses(plan: AnyPlan, override: str) -> None:
    keys = missing_addresses(plan)
    if keys:
        words = " ".join(f"{override}{key}=http://HOST:PORT/v1" for key in keys)
        raise UsageError(
            f"{comma_join(keys)}: {NOT_PUBLISHED} stands there, since an address is never published. Say where you "
            f"serve the model: {words} (null: at OpenAI)"
        )


def asked_for(plan: AnyPlan) -> list[CostEstimate]:
    """Calls, tokens and cost of all games of a run, without retries; see `estimates`."""
    return total_cost(estimate for games in plan.all_games() for estimate in estimates(games))


def stranger_prices(plan: AnyPlan, override: str = "") -> Iterator[tuple[str, str]]:
    """The model groups whose price somebody else has set, each with a message that also says how to confirm it."""
    for group, settings in _asked(plan):
        price = settings.price
        if group in plan.spec.unconfirmed_prices and price is not None:
            listed, fields = listed_price(settings), to_plain(price)
            known = "no known price"
            if listed is not None:
                known = f"known price: {describe_price(listed, price)} ({list_version()})"
            tier = (settings.extra_body or {}).get("service_tier")
            at_tier = "" if tier is None else f" at service tier {tier!r}"
            said = ", ".join(f"{name}: {value:g}" for name, value in fields.items() if value is not None)
            confirm = shlex.quote(f"models.{group}.price={{{said}}}")
            message = (
                f"models.{group}.price: the spec says {describe_price(price, listed)} for a million tokens of "
                f"{settings.model}{at_tier}; {known}. A budget counts the higher. "
                f"If you have checked the spec's price, confirm it: {override}{confirm}"
            )
            yield group, message


def _check_prices(plan: AnyPlan, override: str) -> None:
    """See that a budget in dollars does not rest on a price that only a stranger knows.

    Raises:
        UsageError: it does.
    """
    if plan.spec.experiment.budget.usd is None:
        return
    models = plan.spec.experiment.models
    unknown = [line for group, line in stranger_prices(plan, override) if listed_price(models[group]) is None]
    if unknown:
        raise UsageError(
            f"{_this_spec(plan)}, and budget.usd cannot limit what it costs by a price that you have not confirmed; "
            f"nothing was sent.\n{chr(10).join(unknown)}"
        )


def _check_size(plan: AnyPlan) -> None:
    """See that a spec from elsewhere does not ask for more than a user may expect.

    Raises:
        UsageError: it does, and the user gave it no budget.
    """
    if any(key.partition(".")[0] == "budget" for key in plan.spec.overridden):
        return
    remote = {group for group, _ in _asked(plan)}
    asked = [one for one in asked_for(plan) if one.group in remote]
    most = sum(one.calls[1] for one in asked)
    if most > MAX_CALLS:
        costs = [None if one.cost_usd is None else one.cost_usd[1] for one in asked]
        told = "a price that is not known" if None in costs else f"at most ${sum(filter(None, costs)):,.2f}"
        raise UsageError(
            f"{_this_spec(plan)} and may make {most:,} calls, for {told}; "
            "nothing was sent. Say the most that you will spend: budget.usd=N, or budget.completions=N"
        )
