"""Print the schedule of a protocol for `check`: as JSON, or as a table that has one row for all repeated rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from runner.base.text import comma_join, counted
from runner.cli.terminal.output import format_range, print_table, say_lines
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import ScheduledRound, Stretch, fold_rounds, schedule
from runner.game.protocols.statements import MIN_CLAIMS

COLUMNS = ("round", "speaks", "in channel", "heard by", "may decide")


def show_schedule(protocol: Protocol, *, both_stances: bool = False) -> None:
    """Print who speaks, who listens and who may decide in each round, then the random choices of a game."""
    rounds = schedule(protocol)
    rows: list[tuple[str, ...]] = []
    for stretch in fold_rounds(rounds, len(protocol.steps)):
        for number in range(stretch.first, stretch.last + 1):
            rows.extend(_round_rows(number, rounds[number]))
        rows.extend((repeats, f"as {original}", "", "", "") for repeats, original in _describe_repeats(stretch))
    print_table(COLUMNS, rows, title=f"schedule of {protocol.name}: {counted(len(rounds), 'round')} at most")
    say_lines((*describe_statements(protocol), *describe_random_choices(protocol, both_stances=both_stances)))


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


def _describe_repeats(stretch: Stretch) -> Iterator[tuple[str, str]]:
    """Yield repeated rounds and the rounds that they repeat: full cycles, then an incomplete cycle at the end."""
    cycle_length = stretch.last - stretch.first + 1
    remainder = (stretch.until - stretch.last) % cycle_length
    full_cycles_end = stretch.until - remainder
    if full_cycles_end > stretch.last:
        yield format_range(stretch.last + 1, full_cycles_end), format_range(stretch.first, stretch.last)
    if remainder:
        original = format_range(stretch.first, stretch.first + remainder - 1)
        yield format_range(full_cycles_end + 1, stretch.until), original


def describe_statements(protocol: Protocol) -> Iterator[str]:
    """Yield a line for each round whose message states an answer, sub-claims or probabilities."""
    for number in range(min(len(protocol.steps), protocol.max_message_rounds)):
        step, limit = protocol.step(number), protocol.parameters.max_claims
        if step.states is not None:
            numbers = f" ({MIN_CLAIMS} to {limit})" if step.states == "claims" else ""
            yield f"round {number}: the message of {comma_join(step.speak)} must state: {step.states}{numbers}"


def describe_random_choices(protocol: Protocol, *, both_stances: bool = False) -> Iterator[str]:
    """Yield a sentence for each random choice that differs between rollouts.

    With `both_stances`, the stance is not chosen at random, since each datapoint is played with both.
    """
    for number in range(min(len(protocol.steps), protocol.max_message_rounds)):
        step = protocol.step(number)
        if step.draw == "one" and len(step.speak) > 1:
            yield f"round {number}: one of {' or '.join(step.speak)}, chosen by the rollout's seed"
        if step.pick_claim:
            yield f"round {number}: then the rollout's seed picks a sub-claim, and the game continues with it"
    for agent in protocol.agent_names if protocol.parameters.randomize_channel_order else ():
        for entry in protocol.agent_spec(agent).channel_order or ():
            if not isinstance(entry, str) and len(entry) > 1:
                yield f"{agent} reads {comma_join(entry)} in an order chosen by the rollout's seed"
    if protocol.lists_answers and protocol.parameters.shuffle_answers:
        yield "the answers are shown in an order chosen by the rollout's seed"
    if protocol.parameters.randomize_prover_stance and not both_stances:
        if protocol.lists_answers:
            yield "the rollout's seed decides which prover argues for a right answer, and which for a wrong one"
        else:
            yield "provers argue the stance of the datapoint: the parity of its solution's hash"


def schedule_as_json(protocol: Protocol, *, both_stances: bool = False) -> dict[str, Any]:
    rounds = [{"round": number, **asdict(scheduled)} for number, scheduled in enumerate(schedule(protocol))]
    drawn = list(describe_random_choices(protocol, both_stances=both_stances))
    return {"rounds": rounds, "drawn": drawn, "states": list(describe_statements(protocol))}
