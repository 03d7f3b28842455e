"""The schedule of a protocol: who speaks in each round, where, who hears it, who may decide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.cli.terminal.schedule import describe_random_choices, schedule_as_json, show_schedule
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.schedule import Stretch, fold_rounds, schedule
from tests.support.games import COUNCIL, list_speakers, load_protocol_text


def test_rounds_that_repeat_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    show_schedule(load_protocol("debate"))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["schedule", "of", "debate:", "8", "rounds", "at", "most"],
        ["round", "speaks", "in", "channel", "heard", "by", "may", "decide"],
        ["0", "verifier", "prover0_channel", "prover0,", "prover1", "yes"],
        ["prover1_channel", "prover0,", "prover1"],
        ["1", "prover0", "prover0_channel", "prover1,", "verifier", "no"],
        ["prover1", "prover1_channel", "prover0,", "verifier", "no"],
        ["2-7", "as", "0-1"],
    ]


@pytest.mark.parametrize(
    ("rounds", "told"), [(3, [("2", "0")]), (4, [("2-3", "0-1")]), (7, [("2-5", "0-1"), ("6", "0")]), (1, [])]
)
def test_a_cycle_that_is_cut_short_is_as_the_start_of_one(
    capsys: pytest.CaptureFixture[str], rounds: int, told: list[tuple[str, str]]
) -> None:
    show_schedule(load_protocol("nip", {"max_message_rounds": rounds, "min_message_rounds": 1}))
    said = capsys.readouterr().out
    assert re.findall(r"^([\d-]+) +as ([\d-]+)", said, re.MULTILINE) == told
    assert f": {rounds} round{'s' * (rounds > 1)} at most" in said


def test_a_cycle_that_differs_is_not_folded_into_the_one_before() -> None:
    protocol = load_protocol("nip", {"min_message_rounds": 4, "max_message_rounds": 11})
    rounds = schedule(protocol)
    assert [played.may_decide for played in rounds[:5]] == [(), (), (), (), ("verifier",)]
    assert fold_rounds(rounds, 2) == [Stretch(0, 1, 3), Stretch(4, 5, 10)]
    assert fold_rounds(rounds[:1], 2) == [Stretch(0, 0, 0)]


def test_a_private_channel_is_heard_by_its_members_alone(tmp_path: Path) -> None:
    rounds = schedule_as_json(load_protocol_text(tmp_path, COUNCIL))["rounds"]
    assert [(row["round"], *row["speech"][0].values()) for row in rounds[2:4]] == [
        (2, "second", "back_room", ("speaker", "third")),
        (3, "third", "back_room", ("speaker", "second")),
    ]


def test_what_is_drawn_by_lot_is_said() -> None:
    assert list(describe_random_choices(load_protocol("merlin_arthur"))) == [
        "round 0: one of prover0 or prover1, chosen by the rollout's seed"
    ]
    shuffled = load_protocol("mnip", {"randomize_channel_order": True, "randomize_prover_stance": True})
    assert [line.split(" ")[0] for line in describe_random_choices(shuffled)] == ["verifier", "provers"]
    assert list(describe_random_choices(load_protocol("nip"))) == []


# A cycle starts as it is written, and turns where its file says so

PROVER_FIRST = """\
name: own
agents:
  prover: {role: prover, human_name: Expert}
  verifier: {role: verifier, human_name: Verifier}
channels: {main: {members: [prover, verifier]}}
cycle:
  - speak: {prover: [main]}
  - speak: {verifier: [main]}
parameters: {max_message_rounds: 4}
"""
DECLARED = PROVER_FIRST.replace("rounds: 4", "rounds: 4, verifier_first: true")
P, V = {"prover"}, {"verifier"}


def test_a_protocol_starts_as_its_cycle_is_written(tmp_path: Path) -> None:
    assert list_speakers(load_protocol_text(tmp_path, PROVER_FIRST), 3) == [P, V, P]
    assert list_speakers(load_protocol_text(tmp_path, DECLARED), 3) == [V, P, V]
    assert list_speakers(load_protocol_text(tmp_path, DECLARED, verifier_first=False), 3) == [P, V, P]


def test_a_spec_turns_only_a_cycle_whose_file_declares_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"add parameters: \{verifier_first: true\} to the protocol's file"):
        load_protocol_text(tmp_path, PROVER_FIRST, verifier_first=True)
    assert list_speakers(load_protocol_text(tmp_path, PROVER_FIRST, verifier_first=False), 2) == [P, V]


def test_a_protocol_that_extends_a_built_in_one_turns_as_that_does(tmp_path: Path) -> None:
    own = load_protocol_text(tmp_path, "name: own\nextends: nip\n", verifier_first=False)
    assert list_speakers(own, 2) == [P, V]
