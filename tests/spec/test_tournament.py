"""The section `tournament`: mistakes are reported with their place, and the games follow from the section."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.spec.loader import load_spec
from tests.support.tournaments import tournament_spec

MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"players": {"medium": None, "weak": None}}, "tournament.players", "needs at least 2 entries"),
    ({"players": {"weak": {"model": "strong"}}}, "tournament.players.weak", "the same player as strong"),
    ({"players": {"weak": {"model": "strnog"}}}, "tournament.players.weak.model", "did you mean 'strong'?"),
    ({"players": {"weak": {"prompts": "nowhere"}}}, "tournament.players.weak.prompts", "no folder 'nowhere'"),
    (
        {"players": {"weak": {"prompts": "prompts/code_validation/nip"}}},
        "tournament.players.weak.prompts",
        "no template",
    ),
    ({"seats": ["prover0", "prover9"]}, "tournament.seats.1", "did you mean 'prover1'?"),
    ({"seats": ["prover0", "verifier"]}, "tournament.seats.1", "verifier is no prover"),
    ({"seats": ["prover1", "prover1"]}, "tournament.seats", "prover1 is listed twice"),
    ({"judges": ["nobody"]}, "tournament.judges.0", "no model group 'nobody'"),
    ({"judges": ["judge", "judge"]}, "tournament.judges.1", "judge is a judge already"),
    ({"pairing": "swiss"}, "tournament.pairing", "set tournament.games or a budget"),
    ({"games": 11}, "tournament.games", "fewer than the 12 games of one datapoint in each pairing"),
]


@pytest.mark.parametrize(("changes", "key", "message"), MISTAKES)
def test_mistake_in_the_tournament_section_is_reported_with_its_key(
    tmp_path: Path, changes: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(tournament_spec(tmp_path, tournament=changes))
    problems = [problem for problem in caught.value.problems if problem.key == key]
    assert problems
    assert message in problems[0].message
    assert problems[0].place.line is not None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kind": "benchmark"}, "tournament"),
        ({"tournament": None}, "kind"),
        ({"stances": "both"}, "stances"),
        ({"seats": "swap"}, "seats"),
        ({"until": {"width": 0.1}}, "until"),
        ({"fine_tune": {"formats": ["openai"]}}, "fine_tune"),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "rollouts.num_responses_per_timestep"),
        ({"protocol": {"force_guess": "y"}}, "protocol.force_guess"),
    ],
)
def test_key_that_a_tournament_excludes_is_reported_once(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(tournament_spec(tmp_path, **changes))
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize("protocol", ["nip", "mnip", "merlin_arthur", "solo_verifier"])
def test_protocol_without_two_opposed_provers_in_every_game_is_refused(tmp_path: Path, protocol: str) -> None:
    changes: dict[str, Any] = {
        "protocol": {"use": protocol},
        "prompts": f"prompts/code_validation/{protocol}",
    }
    with pytest.raises(SpecError) as caught:
        load_spec(tournament_spec(tmp_path, **changes), "~protocol.max_message_rounds")
    assert {problem.key for problem in caught.value.problems} & {"protocol.use", "prompts"}
    assert "remove stances" not in str(caught.value)


def test_prompts_that_do_not_show_the_side_are_refused(tmp_path: Path) -> None:
    prompts_folder = tmp_path / "own"
    prompts_folder.mkdir()
    for seat in ("prover0", "prover1"):
        (prompts_folder / f"{seat}.jinja").write_text("{{ solution }}")
    with pytest.raises(
        SpecError, match=rf"players exchange sides: .*{prompts_folder / 'prover1.jinja'}:1:1 never use the variable"
    ):
        load_spec(tournament_spec(tmp_path, tournament={"players": {"weak": {"prompts": "own"}}}))


def test_dataset_without_labels_is_refused(tmp_path: Path) -> None:
    path = tournament_spec(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    unlabeled = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unlabeled))
    with pytest.raises(SpecError) as caught:
        load_spec(path, {"dataset.labels": "hidden"})
    assert caught.value.problems
