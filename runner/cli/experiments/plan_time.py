"""Print the estimated duration of a run and the measurements it is based on, for `nip-run plan --workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.base.text import counted, dollar_range, dollars
from runner.cli.terminal.output import print_table, say
from runner.results.sweep_points import format_point

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.runs.planning.duration import Duration, Pair
    from runner.runs.planning.duration_model import Bound

MINUTE, HOUR = 60.0, 3600.0


def show_duration(point: SpecPoint, forecast: Duration) -> None:
    """Print the estimated duration of a point, its bottleneck, cost, disk and memory."""
    settings = f" with {format_point(point.spec.point)}" if point.spec.point else ""
    games = f"{'' if point.spec.experiment.until is None else 'at most '}{forecast.games:,} games"
    duration = f"{'' if forecast.servers_known else 'at least '}{_format_duration_range(forecast.seconds)}"
    say(f"{point.path}{settings}: {games}, {_format_range(forecast.calls)} calls: {duration}")
    rates = f"{forecast.calls_per_second:,.1f} calls/s, {forecast.tokens_per_second:,.0f} tokens/s"
    say(f"{_describe_workers(forecast)}: {rates}")
    say(f"bottleneck: {forecast.bottleneck}{'' if forecast.servers_known else ' (speed of the servers unknown)'}")
    columns = ("bottleneck", "calls/s", "duration at this rate", "")
    print_table(columns, [_bound_row(bound, forecast) for bound in forecast.bounds])
    prompts, answers = _format_range(forecast.prompt_tokens), _format_range(forecast.completion_tokens)
    say(f"tokens: {prompts} of prompts, {answers} of answers; cost {_format_cost(forecast.cost_usd)}")
    say(
        f"disk: journal {_format_bytes(forecast.journal_bytes)}, tables and fine-tune files "
        f"{_format_bytes(forecast.table_bytes)}; {_format_bytes(forecast.free_bytes)} free"
    )
    say(f"memory: about {_format_bytes(forecast.memory_bytes)} per process")
    for line in forecast.measured:
        say(f"measured: {line}" if forecast.servers_known or "not known" not in line else line)
    for threshold in forecast.breaks[:2]:
        say(f"from {threshold.games:,} games on {threshold.what}: {threshold.do}")


def _describe_workers(forecast: Duration) -> str:
    workers = "one process" if forecast.workers == 1 else f"{counted(forecast.workers, 'worker')} and their writer"
    if forecast.shards > 1:
        per_shard = "" if forecast.workers == 1 else f" of {workers}"
        return (
            f"by {counted(forecast.shards, 'shard')}{per_shard}, each on a machine of {counted(forecast.cores, 'core')}"
        )
    return f"by {workers}, on {counted(forecast.cores, 'core')}"


def _bound_row(bound: Bound, forecast: Duration) -> tuple[str, str, str, str]:
    seconds = forecast.calls[1] / bound.calls_per_second
    return bound.name, f"{bound.calls_per_second:,.1f}", _format_duration_range((seconds, seconds)), bound.detail


def _format_range(pair: Pair) -> str:
    low, high = (f"{value:,.0f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _format_duration_range(pair: Pair) -> str:
    """Format a range of seconds in hours, or in minutes or seconds if short."""
    low, high = map(_format_duration, pair)
    return low if low == high else f"{low} to {high}"


def _format_duration(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:,.1f} h"


def _format_cost(usd: Pair | None) -> str:
    if usd is None:
        return "unknown (no price)"
    return dollars(usd[0]) if usd[0] == usd[1] else dollar_range(usd)


def _format_bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
