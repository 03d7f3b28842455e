"""The schedule of a protocol: speakers, channels, recipients and verdicts of each round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.cli.terminal.schedule import describe_random_choices, schedule_as_json, show_schedule
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.schedule import Stretch, fold_rounds, schedule
from tests.support.games import COUNCIL, list_speakers, load_protocol_text


def test_repeated_rounds_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
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
    ("rounds", "expected"), [(3, [("2", "0")]), (4, [("2-3", "0-1")]), (7, [("2-5", "0-1"), ("6", "0")]), (1, [])]
)
def test_incomplete_last_cycle_refers_to_the_start_of_a_cycle(
    capsys: pytest.CaptureFixture[str], rounds: int, expected: list[tuple[str, str]]
) -> None:
    show_schedule(load_protocol("nip", {"max_message_rounds": rounds, "min_message_rounds": 1}))
    output = capsys.readouterr().out
    assert re.findall(r"^([\d-]+) +as ([\d-]+)", output, re.MULTILINE) == expected
    assert f": {rounds} round{'s' * (rounds > 1)} at most" in output


def test_cycle_that_differs_from_the_previous_one_is_not_folded() -> None:
    protocol = load_protocol("nip", {"min_message_rounds": 4, "max_message_rounds": 11})
    rounds = schedule(protocol)
    assert [round_.may_decide for round_ in rounds[:5]] == [(), (), (), (), ("verifier",)]
    assert fold_rounds(rounds, 2) == [Stretch(0, 1, 3), Stretch(4, 5, 10)]
    assert fold_rounds(rounds[:1], 2) == [Stretch(0, 0, 0)]


def test_private_channel_is_heard_only_by_its_members(tmp_path: Path) -> None:
    rounds = schedule_as_json(load_protocol_text(tmp_path, COUNCIL))["rounds"]
    assert [(row["round"], *row["speech"][0].values()) for row in rounds[2:4]] == [
        (2, "second", "back_room", ("speaker", "third")),
        (3, "third", "back_room", ("speaker", "second")),
    ]


def test_random_choices_of_a_protocol_are_described() -> None:
    assert list(describe_random_choices(load_protocol("merlin_arthur"))) == [
        "round 0: one of prover0 or prover1, chosen by the rollout's seed"
    ]
    shuffled = load_protocol("mnip", {"randomize_channel_order": True, "randomize_prover_stance": True})
    assert [line.split(" ")[0] for line in describe_random_choices(shuffled)] == ["verifier", "provers"]
    assert list(describe_random_choices(load_protocol("nip"))) == []


# `verifier_first` in a protocol file and in a spec

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
VERIFIER_FIRST = PROVER_FIRST.replace("rounds: 4", "rounds: 4, verifier_first: true")
PROVER_SPEAKS, VERIFIER_SPEAKS = {"prover"}, {"verifier"}


def test_protocol_starts_with_the_first_step_unless_verifier_first_is_declared(tmp_path: Path) -> None:
    assert list_speakers(load_protocol_text(tmp_path, PROVER_FIRST), 3) == [
        PROVER_SPEAKS,
        VERIFIER_SPEAKS,
        PROVER_SPEAKS,
    ]
    assert list_speakers(load_protocol_text(tmp_path, VERIFIER_FIRST), 3) == [
        VERIFIER_SPEAKS,
        PROVER_SPEAKS,
        VERIFIER_SPEAKS,
    ]
    assert list_speakers(load_protocol_text(tmp_path, VERIFIER_FIRST, verifier_first=False), 3) == [
        PROVER_SPEAKS,
        VERIFIER_SPEAKS,
        PROVER_SPEAKS,
    ]


def test_spec_may_set_verifier_first_only_if_the_protocol_file_declares_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"add parameters: \{verifier_first: true\} to the protocol's file"):
        load_protocol_text(tmp_path, PROVER_FIRST, verifier_first=True)
    assert list_speakers(load_protocol_text(tmp_path, PROVER_FIRST, verifier_first=False), 2) == [
        PROVER_SPEAKS,
        VERIFIER_SPEAKS,
    ]


def test_protocol_that_extends_a_built_in_one_accepts_verifier_first(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, "name: own\nextends: nip\n", verifier_first=False)
    assert list_speakers(protocol, 2) == [PROVER_SPEAKS, VERIFIER_SPEAKS]
