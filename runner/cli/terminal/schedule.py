"""Print the schedule of a protocol for `check`: a table in which repeated rounds share a row, or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from runner.base.text import comma_join, counted
from runner.cli.terminal.output import print_table, say
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import ScheduledRound, Stretch, fold_rounds, schedule

COLUMNS = ("round", "speaks", "in channel", "heard by", "may decide")


def show_schedule(protocol: Protocol, *, both_stances: bool = False) -> None:
    """Print the speakers, channels, listeners and deciders of each round, then the random choices of a game."""
    rounds = schedule(protocol)
    rows: list[tuple[str, ...]] = []
    for stretch in fold_rounds(rounds, len(protocol.steps)):
        for number in range(stretch.first, stretch.last + 1):
            rows.extend(_round_rows(number, rounds[number]))
        rows.extend((repeats, f"as {original}", "", "", "") for repeats, original in _repeats(stretch))
    print_table(COLUMNS, rows, title=f"schedule of {protocol.name}: {counted(len(rounds), 'round')} at most")
    for line in describe_random_choices(protocol, both_stances=both_stances):
        say(line)


def _round_rows(number: int, scheduled: ScheduledRound) -> Iterator[tuple[str, ...]]:
    if not scheduled.speech:
        yield (str(number), "nobody", "", "", "")
    previous_agent = None
    for index, speech in enumerate(scheduled.speech):
        is_new = speech.agent != previous_agent
        yield (
            "" if index else str(number),
            speech.agent + " (drawn)" * (scheduled.draw == "one") if is_new else "",
            speech.channel,
            comma_join(speech.heard_by) or "nobody else",
            ("yes" if speech.agent in scheduled.may_decide else "no") if is_new else "",
        )
        previous_agent = speech.agent


def _repeats(stretch: Stretch) -> Iterator[tuple[str, str]]:
    """Yield pairs of repeating and original rounds: for the full cycles, then for an incomplete cycle at the end."""
    period, start = stretch.last - stretch.first + 1, stretch.last + 1
    rest = (stretch.until - stretch.last) % period
    if stretch.until - rest > stretch.last:
        yield _format_range(start, stretch.until - rest), _format_range(stretch.first, stretch.last)
    if rest:
        yield (
            _format_range(stretch.until - rest + 1, stretch.until),
            _format_range(stretch.first, stretch.first + rest - 1),
        )


def _format_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def describe_random_choices(protocol: Protocol, *, both_stances: bool = False) -> Iterator[str]:
    """Yield a sentence for each random choice that differs between rollouts.

    With `both_stances`, the stance is not chosen at random, since each datapoint is played with both.
    """
    for number in range(min(len(protocol.steps), protocol.max_message_rounds)):
        if protocol.step(number).draw == "one" and len(protocol.can_be_active(number)) > 1:
            names = " or ".join(protocol.can_be_active(number))
            yield f"round {number}: one of {names}, chosen by the rollout's seed"
    for agent in protocol.agent_names if protocol.parameters.randomize_channel_order else ():
        for entry in protocol.agent_spec(agent).channel_order or ():
            if not isinstance(entry, str) and len(entry) > 1:
                yield f"{agent} reads {comma_join(entry)} in an order chosen by the rollout's seed"
    if protocol.parameters.randomize_prover_stance and not both_stances:
        yield "provers argue the stance of the datapoint: the parity of its solution's hash"


def schedule_as_json(protocol: Protocol, *, both_stances: bool = False) -> dict[str, Any]:
    rounds = [{"round": number, **asdict(scheduled)} for number, scheduled in enumerate(schedule(protocol))]
    return {"rounds": rounds, "drawn": list(describe_random_choices(protocol, both_stances=both_stances))}
