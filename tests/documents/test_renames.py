"""Keys by their old names, wherever a document or an override can write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import LayeredData
from runner.documents.overrides import Override
from tests.support.document_layers import find_in_folder, write_document

NAMES = {"rollouts.most": "rollouts.max"}


def layers(folder: Path, text: str, *overrides: str) -> LayeredData:
    return load_layers(
        write_document(folder, "a.yaml", text), "a.yaml", [Override(o) for o in overrides], find_in_folder, NAMES
    )


@pytest.mark.parametrize(
    ("text", "overrides", "place"),
    [
        ("rollouts: {few: 1, most: 5}\n", (), "a.yaml:1:20"),
        ("rollouts:\n  most: 5\n  few: 1\n", (), "a.yaml:2:3"),
        ("rollouts: {few: 1}\n", ("rollouts.most=5",), "override 'rollouts.most=5':1:1"),
        ("rollouts: {few: 1}\n", ("+rollouts.most=5",), "override '+rollouts.most=5':1:1"),
        ("rollouts: {few: 1, max: 4}\n", ("rollouts.most=5",), "override 'rollouts.most=5':1:1"),
        ("seed: 1\n", ("rollouts={few: 1, most: 5}",), "override 'rollouts={few: 1, most: 5}':1:1"),
    ],
)
def test_an_old_name_sets_the_key_of_the_new_one(
    tmp_path: Path, text: str, overrides: tuple[str, ...], place: str
) -> None:
    found = layers(tmp_path, text, *overrides)
    assert found.problems == []
    assert found.data["rollouts"] == {"few": 1, "max": 5}
    assert [str(key) for key in found.renamed_keys] == [f"{place}: 'rollouts.most' is now 'rollouts.max'"]
    assert str(found.place(("rollouts", "max"))) == place


def test_the_order_of_keys_stays(tmp_path: Path) -> None:
    assert list(layers(tmp_path, "rollouts: {a: 1, most: 5, b: 2}\n").data["rollouts"]) == ["a", "max", "b"]


def test_an_old_name_can_be_deleted(tmp_path: Path) -> None:
    found = layers(tmp_path, "rollouts: {few: 1, max: 5}\n", "~rollouts.most")
    assert (found.data, found.problems) == ({"rollouts": {"few": 1}}, [])
    assert [key.new for key in found.renamed_keys] == ["rollouts.max"]


def test_a_file_above_wins_whichever_name_each_uses(tmp_path: Path) -> None:
    write_document(tmp_path, "old.yaml", "rollouts: {most: 1}\n")
    write_document(tmp_path, "new.yaml", "rollouts: {max: 1}\n")
    assert layers(tmp_path, "extends: old.yaml\nrollouts: {max: 2}\n").data == {"rollouts": {"max": 2}}
    assert layers(tmp_path, "extends: new.yaml\nrollouts: {most: 2}\n").data == {"rollouts": {"max": 2}}


def test_a_key_of_a_sweep_is_renamed_too(tmp_path: Path) -> None:
    found = layers(tmp_path, "seed: 1\nsweep:\n  rollouts.most: [1, 2]\n")
    assert found.data["sweep"] == {"rollouts.max": [1, 2]}
    assert str(found.place(("sweep", "rollouts.max", 1))) == "a.yaml:3:22"
    assert len(found.renamed_keys) == 1


@pytest.mark.parametrize("reference", ["${rollouts.most}", "${.most}", "${ rollouts.most }", "${rollouts[most]}"])
def test_an_interpolation_finds_the_key_by_its_old_name(tmp_path: Path, reference: str) -> None:
    found = layers(tmp_path, f'rollouts:\n  max: 5\n  few: "{reference}"\n')
    assert (found.data, found.problems) == ({"rollouts": {"max": 5, "few": 5}}, [])
    assert [str(key) for key in found.renamed_keys] == ["a.yaml:3:3: 'rollouts.most' is now 'rollouts.max'"]


def test_a_text_that_is_no_interpolation_stays(tmp_path: Path) -> None:
    found = layers(tmp_path, "note: most of rollouts.most, \\${rollouts.most}\nmost: 1\nother: {most: 2}\n")
    assert found.data["note"] == "most of rollouts.most, ${rollouts.most}"
    assert (found.data["most"], found.data["other"]) == (1, {"most": 2})
    assert found.renamed_keys == []


@pytest.mark.parametrize(
    ("text", "overrides", "problem"),
    [
        ("rollouts: {max: 5,\n  most: 6}\n", (), "a.yaml:2:3: rollouts.most: "),
        ("sweep: {rollouts.most: [1], rollouts.max: [2]}\n", (), "a.yaml:1:9: sweep.rollouts.most: "),
        ("seed: 1\n", ("rollouts={most: 1, max: 2}",), "override 'rollouts={most: 1, max: 2}':1:1: rollouts.most: "),
    ],
)
def test_both_names_at_once_are_an_error(tmp_path: Path, text: str, overrides: tuple[str, ...], problem: str) -> None:
    found = layers(tmp_path, text, *overrides)
    assert [str(p) for p in found.problems] == [
        f"{problem}rollouts.most is the old name of rollouts.max, which is also set; remove one of the two"
    ]


def test_an_old_name_is_not_added_where_the_key_is(tmp_path: Path) -> None:
    found = layers(tmp_path, "rollouts: {max: 5}\n", "+rollouts.most=6")
    assert "the key is already set; write rollouts.max=..." in found.problems[0].message
