"""How long a run takes, as `nip-run plan --workers` prints it: the answer first, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.base.text import counted, dollar_range, dollars
from runner.cli.terminal.output import print_table, say
from runner.results.sweep_points import shown_point

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.runs.planning.duration import Duration, Pair
    from runner.runs.planning.duration_model import Bound

MINUTE, HOUR = 60.0, 3600.0


def show_time(point: SpecPoint, time: Duration) -> None:
    """Print it."""
    swept = f" with {shown_point(point.spec.point)}" if point.spec.point else ""
    least = "" if time.servers_known else "at least "
    most = "" if point.spec.experiment.until is None else "at most "
    say(f"{point.path}{swept}: {most}{time.games:,} games, {_range(time.calls)} calls: {least}{_long(time.seconds)}")
    say(f"{_players(time)}: {time.calls_per_second:,.1f} calls/s, {time.tokens_per_second:,.0f} tokens/s")
    say(f"bottleneck: {time.bottleneck}{'' if time.servers_known else ', as far as servers are not'}")
    columns = ("what bounds it", "calls/s", "alone it would take", "")
    print_table(columns, [_row(bound, time) for bound in time.bounds])
    tokens = f"tokens: {_range(time.prompt_tokens)} of prompts, {_range(time.completion_tokens)} of answers"
    say(f"{tokens}; cost {_cost(time.cost_usd)}")
    say(
        f"disk: journal {_bytes(time.journal_bytes)}, tables and fine-tune files {_bytes(time.table_bytes)}; "
        f"{_bytes(time.free_bytes)} are free"
    )
    say(f"memory: some {_bytes(time.memory_bytes)} a process")
    for line in time.measured:
        say(f"measured: {line}" if time.servers_known or "not known" not in line else line)
    for one in time.breaks[:2]:
        say(f"from {one.games:,} games on {one.what}: {one.do}")


def _players(time: Duration) -> str:
    played = "one process" if time.workers == 1 else f"{counted(time.workers, 'worker')} and their writer"
    if time.shards > 1:
        each = "" if time.workers == 1 else f" of {played}"
        return f"by {counted(time.shards, 'shard')}{each}, each on a machine of {counted(time.cores, 'core')}"
    return f"by {played}, on {counted(time.cores, 'core')}"


def _row(bound: Bound, time: Duration) -> tuple[str, str, str, str]:
    calls = time.calls[1]
    return bound.name, f"{bound.calls_per_second:,.1f}", _long((calls / bound.calls_per_second,) * 2), bound.detail


def _range(pair: Pair) -> str:
    low, high = (f"{value:,.0f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _long(pair: Pair) -> str:
    """Hours; minutes and seconds where there are few."""
    low, high = map(_one, pair)
    return low if low == high else f"{low} to {high}"


def _one(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:,.1f} h"


def _cost(usd: Pair | None) -> str:
    if usd is None:
        return "unknown (no price)"
    return dollars(usd[0]) if usd[0] == usd[1] else dollar_range(usd)


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
