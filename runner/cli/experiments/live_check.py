"""Send requests to the server of each model group, and print their price and the answers, for `check --live`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runner.base.async_runner import run_sync
from runner.base.errors import ProviderRefusal, TransientError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, dollars, in_one_line
from runner.cli.terminal.output import print_heading, say
from runner.models.api_keys import KeyUse, host_of
from runner.models.costs import CallCosts
from runner.models.layers.budget import Budget, BudgetSettings
from runner.models.usage_totals import UsageTotals
from runner.rollouts.plan import used_models
from runner.runs.finished.selection import OWN_RUN
from runner.runs.planning.server_features import ServerReport, check_server, max_cost, probes_of, settings_to_check
from runner.training.dispatch import choose_run_id
from runner.training.sweep_budgets import spending_of_plan
from runner.training.trust import check_trust

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.models.retry_policy import Retry
    from runner.models.settings import ModelSettings
    from runner.results.leaderboard.results_folder import Results

_YES_NO = {True: "yes", False: "no", None: "unknown"}


class _Target(NamedTuple):
    """A server of a model group; the fields are the arguments of `check_server`."""

    group: str
    settings: ModelSettings
    retry: Retry
    budget: Budget
    unconfirmed_prices: Collection[str]

    def describe_usage(self, total: UsageTotals) -> str:
        is_priced = CallCosts({self.group: self.settings}).is_priced
        price = dollars(total.usd) if is_priced else "unknown price"
        return f"{counted(total.completions, 'request')}, {total.tokens:,} tokens, {price}"


def check_servers(
    points: Sequence[SpecPoint], results: Results, allowed: Collection[KeyUse], *, as_json: bool
) -> tuple[list[dict[str, object]], ExitCode]:
    """Send requests to each server of each model group. Return the reports as JSON data, and an exit code.

    Unless `as_json`, print the price before the first request, and each report as soon as its server has answered.

    Raises:
        UsageError: a server has no address, or a fetched spec lacks a permission.
    """
    targets = list(_targets_of(points, results, allowed))
    if not as_json:
        _show_prices(targets)
    reports = []
    for target in targets:
        reports.append(run_sync(lambda: check_server(*target)))  # noqa: B023 - called before `target` changes
        if not as_json:
            _show_report(target, reports[-1])
    errors = (report.error for report in reports)
    code = next((error.exit_code for error in errors if error is not None), ExitCode.DONE)
    return list(map(_report_as_json, reports)), code


def _targets_of(points: Sequence[SpecPoint], results: Results, allowed: Collection[KeyUse]) -> Iterator[_Target]:
    """Yield each server once. The points of a spec share a budget, which includes what their runs have spent."""
    budgets: dict[tuple[str, BudgetSettings], Budget] = {}
    checked: list[tuple[str, ModelSettings]] = []
    for point in points:
        check_trust(point.plan, None, allowed)
        games = point.plan.games
        settings = games.shard_experiment.budget
        budget = budgets.setdefault((point.path, settings), Budget(settings))
        budget.add_spent(spending_of_plan(point.plan, results, choose_run_id(point.plan, results, OWN_RUN)))
        models = used_models(games)
        for group, server in [(name, server) for name in models for server in settings_to_check(models[name])]:
            if (group, server) not in checked:
                checked.append((group, server))
                yield _Target(group, server, point.spec.experiment.retry, budget, point.spec.unconfirmed_prices)


def _show_prices(targets: Sequence[_Target]) -> None:
    """Print the maximum price of the requests, including attempts that fail, which a provider may bill."""
    say()
    if not targets:
        say("live check: no model group calls a server, so nothing is sent")
    for target in targets:
        first, *others = (
            max_cost(target.group, probe, target.unconfirmed_prices) for probe in probes_of(target.settings)
        )
        say(f"live check of {target.group}: at most {target.describe_usage(first)}")
        say(f"  if the server refuses this request: at most {target.describe_usage(sum(others, first))}")


def _show_report(target: _Target, report: ServerReport) -> None:
    settings, completion = report.settings, report.completion
    say()
    print_heading(f"{report.group}: {settings.name} at {host_of(settings.server_url)}")
    lines = [("key", comma_join(f"${name}" for name in settings.variables) or "none is sent")]
    lines += [("retried", _split_message(text)[0]) for text in dict.fromkeys(report.failed_attempts)]
    if completion is not None:
        usage, model = completion.usage, in_one_line(completion.model)
        counts = f"{usage.prompt_tokens} prompt ({usage.cached_tokens} cached), {usage.completion_tokens} answer"
        source = "; estimated, since the server counts none: budgets count the maximum" if usage.estimated else ""
        lines += [
            ("model", model if model == settings.model else f"{model}; the spec asks for {settings.model}"),
            ("latency", f"{completion.latency_ms / 1000:.2f} s"),
            ("tokens", counts + source),
            ("chats of the spec", f"{settings.resolved_chat_format}, instructions in role {settings.system_role}"),
        ]
        for name, (supported, reason) in report.features.items():
            lines.append((name, _YES_NO[supported] + (f": {reason}" if reason else "")))
    if report.error is not None:
        explanation = _explain_error(report)
        lines += [("error", f"{explanation.kind}: {explanation.message}"), ("next", explanation.next)]
    for label, text in (*lines, ("counted", f"at most {target.describe_usage(report.spent)}")):
        say(f"  {label:<18} {text}")


def _report_as_json(report: ServerReport) -> dict[str, object]:
    completion = report.completion
    is_priced = CallCosts({report.group: report.settings}).is_priced
    return {
        "group": report.group,
        "server": report.settings.server_url,
        "variables": list(report.settings.variables),
        "model": None if completion is None else completion.model,
        "latency_ms": None if completion is None else completion.latency_ms,
        "cached_tokens": None if completion is None else completion.usage.cached_tokens,
        "features": {name: finding._asdict() for name, finding in report.features.items()},
        "retried": report.failed_attempts,
        "requests": report.spent.completions,
        "tokens": report.spent.tokens,
        "cost_usd": report.spent.usd if is_priced else None,
        "error": None if report.error is None else _explain_error(report)._asdict(),
    }


class _ErrorExplanation(NamedTuple):
    """The error of a report."""

    kind: str
    message: str
    next: str
    """The advice to the user."""


def _explain_error(report: ServerReport) -> _ErrorExplanation:
    error, key = report.error, f"models.{report.group}"
    assert error is not None
    message, advice = _split_message(str(error))
    kind = "the request failed"
    if isinstance(error, TransientError):
        kind, advice = _explain_transient(error, key)
    elif isinstance(error, ProviderRefusal):
        kind = "unknown model" if error.no_such_model else "refused request" if error.changes else "key or account"
    return _ErrorExplanation(kind, message, advice or f"correct {key}, and repeat the command")


def _explain_transient(error: TransientError, key: str) -> tuple[str, str]:
    if error.unreachable:
        return "no server", f"start the server, or correct {key}.base_url"
    if error.status == 429:
        return "rate limit", f"wait, or set {key}.requests_per_minute below the server's limit"
    if error.status is None:
        return "no answer", f"read the server's log; a slow server may need a longer {key}.timeout"
    return "the server failed", "read the server's log, or try again later"


def _split_message(text: str) -> tuple[str, str]:
    """Return an error's message and its advice, which is in the lines after the first, or after the last semicolon."""
    message, _, advice = text.partition("\n")
    if not advice and "; " in message:
        message, _, advice = message.rpartition("; ")
    return in_one_line(message), in_one_line(advice)
