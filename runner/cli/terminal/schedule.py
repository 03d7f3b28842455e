"""The schedule of a protocol as `check` shows it: a table for people, rounds that repeat folded, and JSON."""

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
    """Print who speaks, where, who hears it and who may decide, round by round; then what is drawn by lot."""
    rounds = schedule(protocol)
    rows: list[tuple[str, ...]] = []
    for stretch in fold_rounds(rounds, len(protocol.steps)):
        for number in range(stretch.first, stretch.last + 1):
            rows.extend(_rows(number, rounds[number]))
        rows.extend((repeats, f"as {played}", "", "", "") for repeats, played in _repeats(stretch))
    print_table(COLUMNS, rows, title=f"schedule of {protocol.name}: {counted(len(rounds), 'round')} at most")
    for line in drawn(protocol, both_stances=both_stances):
        say(line)


def _rows(number: int, played: ScheduledRound) -> Iterator[tuple[str, ...]]:
    if not played.speech:
        yield (str(number), "nobody", "", "", "")
    before = None
    for index, speech in enumerate(played.speech):
        is_new = speech.agent != before
        yield (
            "" if index else str(number),
            speech.agent + " (drawn)" * (played.draw == "one") if is_new else "",
            speech.channel,
            comma_join(speech.heard_by) or "nobody else",
            ("yes" if speech.agent in played.may_decide else "no") if is_new else "",
        )
        before = speech.agent


def _repeats(stretch: Stretch) -> Iterator[tuple[str, str]]:
    """Which rounds are as which: the whole cycles, then the start of one that the game's end cuts short."""
    period, begun = stretch.last - stretch.first + 1, stretch.last + 1
    cut = (stretch.until - stretch.last) % period
    if stretch.until - cut > stretch.last:
        yield _span(begun, stretch.until - cut), _span(stretch.first, stretch.last)
    if cut:
        yield _span(stretch.until - cut + 1, stretch.until), _span(stretch.first, stretch.first + cut - 1)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def drawn(protocol: Protocol, *, both_stances: bool = False) -> Iterator[str]:
    """What of the schedule differs from rollout to rollout, a sentence each; `both_stances`: each is played."""
    for number in range(min(len(protocol.steps), protocol.max_message_rounds)):
        if protocol.step(number).draw == "one" and len(protocol.can_be_active(number)) > 1:
            names = " or ".join(protocol.can_be_active(number))
            yield f"round {number}: {names}, one of them, drawn by the rollout's seed"
    for agent in protocol.agent_names if protocol.parameters.randomize_channel_order else ():
        for entry in protocol.agent_spec(agent).channel_order or ():
            if not isinstance(entry, str) and len(entry) > 1:
                yield f"{agent} reads {comma_join(entry)} in an order drawn by the rollout's seed"
    if protocol.parameters.randomize_prover_stance and not both_stances:
        yield "provers argue the stance of the datapoint: the parity of its solution's hash"


def schedule_as_json(protocol: Protocol, *, both_stances: bool = False) -> dict[str, Any]:
    rounds = [{"round": number, **asdict(played)} for number, played in enumerate(schedule(protocol))]
    return {"rounds": rounds, "drawn": list(drawn(protocol, both_stances=both_stances))}
