"""Old names of keys work in documents, overrides, sweeps and interpolations."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.overrides import Override
from tests.support.document_layers import find_in_folder, write_document

NAMES = {"rollouts.most": "rollouts.max"}


def load_renamed(folder: Path, text: str, *overrides: str) -> LayeredData:
    return load_layers(
        write_document(folder, "a.yaml", text),
        "a.yaml",
        [Override(o) for o in overrides],
        find_in_folder,
        KeyRules(renamed=NAMES),
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
def test_old_name_sets_the_renamed_key(tmp_path: Path, text: str, overrides: tuple[str, ...], place: str) -> None:
    layered = load_renamed(tmp_path, text, *overrides)
    assert layered.problems == []
    assert layered.data["rollouts"] == {"few": 1, "max": 5}
    assert [str(key) for key in layered.renamed_keys] == [f"{place}: 'rollouts.most' is now 'rollouts.max'"]
    assert str(layered.place(("rollouts", "max"))) == place


def test_renaming_keeps_the_order_of_keys(tmp_path: Path) -> None:
    assert list(load_renamed(tmp_path, "rollouts: {a: 1, most: 5, b: 2}\n").data["rollouts"]) == ["a", "max", "b"]


def test_an_old_name_can_be_deleted(tmp_path: Path) -> None:
    layered = load_renamed(tmp_path, "rollouts: {few: 1, max: 5}\n", "~rollouts.most")
    assert (layered.data, layered.problems) == ({"rollouts": {"few": 1}}, [])
    assert [key.new for key in layered.renamed_keys] == ["rollouts.max"]


def test_file_overrides_its_base_with_the_old_or_the_new_name(tmp_path: Path) -> None:
    write_document(tmp_path, "old.yaml", "rollouts: {most: 1}\n")
    write_document(tmp_path, "new.yaml", "rollouts: {max: 1}\n")
    assert load_renamed(tmp_path, "extends: old.yaml\nrollouts: {max: 2}\n").data == {"rollouts": {"max": 2}}
    assert load_renamed(tmp_path, "extends: new.yaml\nrollouts: {most: 2}\n").data == {"rollouts": {"max": 2}}


def test_key_of_a_sweep_is_renamed(tmp_path: Path) -> None:
    layered = load_renamed(tmp_path, "seed: 1\nsweep:\n  rollouts.most: [1, 2]\n")
    assert layered.data["sweep"] == {"rollouts.max": [1, 2]}
    assert str(layered.place(("sweep", "rollouts.max", 1))) == "a.yaml:3:22"
    assert len(layered.renamed_keys) == 1


@pytest.mark.parametrize("reference", ["${rollouts.most}", "${.most}", "${ rollouts.most }", "${rollouts[most]}"])
def test_interpolation_resolves_the_old_name(tmp_path: Path, reference: str) -> None:
    layered = load_renamed(tmp_path, f'rollouts:\n  max: 5\n  few: "{reference}"\n')
    assert (layered.data, layered.problems) == ({"rollouts": {"max": 5, "few": 5}}, [])
    assert [str(key) for key in layered.renamed_keys] == ["a.yaml:3:3: 'rollouts.most' is now 'rollouts.max'"]


def test_text_without_interpolation_is_not_renamed(tmp_path: Path) -> None:
    layered = load_renamed(tmp_path, "note: most of rollouts.most, \\${rollouts.most}\nmost: 1\nother: {most: 2}\n")
    assert layered.data["note"] == "most of rollouts.most, ${rollouts.most}"
    assert (layered.data["most"], layered.data["other"]) == (1, {"most": 2})
    assert layered.renamed_keys == []


@pytest.mark.parametrize(
    ("text", "overrides", "problem"),
    [
        ("rollouts: {max: 5,\n  most: 6}\n", (), "a.yaml:2:3: rollouts.most: "),
        ("sweep: {rollouts.most: [1], rollouts.max: [2]}\n", (), "a.yaml:1:9: sweep.rollouts.most: "),
        ("seed: 1\n", ("rollouts={most: 1, max: 2}",), "override 'rollouts={most: 1, max: 2}':1:1: rollouts.most: "),
    ],
)
def test_setting_old_and_new_name_together_is_an_error(
    tmp_path: Path, text: str, overrides: tuple[str, ...], problem: str
) -> None:
    layered = load_renamed(tmp_path, text, *overrides)
    assert [str(p) for p in layered.problems] == [
        f"{problem}rollouts.most is the old name of rollouts.max, which is also set; remove one of the two"
    ]


def test_old_name_cannot_be_added_if_the_key_is_set(tmp_path: Path) -> None:
    layered = load_renamed(tmp_path, "rollouts: {max: 5}\n", "+rollouts.most=6")
    assert "the key is already set; write rollouts.max=..." in layered.problems[0].message
