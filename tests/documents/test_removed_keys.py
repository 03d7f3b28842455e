"""Null in a file deletes an inherited entry or resets it, unless null is a valid value of the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.overrides import Override
from runner.models.retry_policy import Retry
from runner.spec.datasets.settings import DatasetLimits
from runner.spec.experiment import AgentSettings, Rollouts
from runner.spec.loader import load_spec, load_specs
from runner.spec.schemas import removable_spec_keys
from tests.support.document_layers import find_in_folder, write_document
from tests.support.specs import spec_file

REMOVABLE = frozenset({("m", "*"), ("m", "*", "deep", "*"), ("sweep",)})


def load_with_base(folder: Path, text: str, *overrides: str) -> LayeredData:
    write_document(
        folder, "base.yaml", "m: {x: {a: 1, deep: {p: 1, q: 2}}, y: {a: 2}}\nn: {x: 1}\nsweep: {seed: [1]}\n"
    )
    path = write_document(folder, "a.yaml", "extends: base.yaml\n" + text)
    return load_layers(path, "a.yaml", [Override(o) for o in overrides], find_in_folder, KeyRules(removable=REMOVABLE))


def test_null_deletes_a_removable_entry_and_stays_a_value_elsewhere(tmp_path: Path) -> None:
    layered = load_with_base(tmp_path, "m: {x: {deep: {p: null}}, y: null}\nn: {x: null}\nsweep: null\n")
    assert layered.problems == []
    assert layered.data == {"m": {"x": {"a": 1, "deep": {"q": 2}}}, "n": {"x": None}}


def test_entry_deleted_by_a_base_can_be_added_again(tmp_path: Path) -> None:
    load_with_base(tmp_path, "")
    write_document(tmp_path, "middle.yaml", "extends: base.yaml\nm: {x: null}\n")
    path = write_document(tmp_path, "last.yaml", "extends: middle.yaml\nm: {x: {b: 3}}\n")
    assert load_layers(path, "last.yaml", [], find_in_folder, KeyRules(removable=REMOVABLE)).data["m"] == {
        "x": {"b": 3},
        "y": {"a": 2},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m: {xx: null}\n", ("a.yaml:2:5: m.xx: null deletes an inherited key, and this file inherits no such key; "
         "did you mean 'x'?")),
        ("m:\n  zzz:\n", ("a.yaml:3:3: m.zzz: null deletes an inherited key, and this file inherits no such key; "
         "leave the line out")),
    ],
)  # fmt: skip
def test_deleting_a_missing_entry_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    assert [str(problem) for problem in load_with_base(tmp_path, text).wrong_nulls] == [message]


def test_null_in_an_override_deletes_like_a_tilde(tmp_path: Path) -> None:
    assert load_with_base(tmp_path, "", "m.y=null", "m.x.deep=null").data["m"] == {"x": {"a": 1, "deep": None}}
    (problem,) = load_with_base(tmp_path, "", "m.z=null").problems
    assert "no such key to delete" in str(problem)


def test_removable_keys_are_those_that_cannot_be_null() -> None:
    keys = removable_spec_keys()
    assert {
        ("agents", "*"),
        ("models", "*"),
        ("training", "trainers", "*"),
        ("sweep", "*"),
        ("sweep",),
        ("protocol", "max_message_rounds"),
    } <= keys
    assert (
        not {
            ("fine_tune",),
            ("protocol", "use"),
            ("models", "*", "temperature"),
            ("models", "*", "extra_body", "*"),
            ("seed",),
        }
        & keys
    )


def test_agent_of_a_base_can_be_deleted_for_another_protocol(tmp_path: Path) -> None:
    spec_file(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "extends: spec.yaml\nprotocol: {use: solo_verifier, max_message_rounds: null}\nfine_tune: null\n"
        "prompts: prompts/code_validation/solo_verifier\nagents: {prover: null}\n"
    )
    experiment = load_spec(tmp_path / "mine.yaml").experiment
    assert (list(experiment.agents), experiment.fine_tune) == (["verifier"], None)


RESET_TEXT = (
    "seed: null\nretry: {transient: null}\nrollouts: null\ndataset: {shuffle: null, limits: null}\n"
    "agents: {prover: {max_response_words: null}}\n"
)


def test_null_resets_an_inherited_key_that_cannot_be_null(tmp_path: Path) -> None:
    spec_file(tmp_path, dataset={"shuffle": True, "limits": {"rows": 50}}, agents={"prover": {"max_response_words": 9}})
    (tmp_path / "mine.yaml").write_text("extends: spec.yaml\n" + RESET_TEXT)
    overrides = ["seed=null", "retry.transient=null", "dataset.shuffle=null", "dataset.limits=null", "rollouts=null"]
    for experiment in (
        load_spec(tmp_path / "mine.yaml").experiment,
        load_spec(tmp_path / "spec.yaml", [*overrides, "agents.prover.max_response_words=null"]).experiment,
    ):
        assert (experiment.seed, experiment.retry, experiment.rollouts) == (0, Retry(), Rollouts())
        assert (experiment.dataset.shuffle, experiment.dataset.limits) == (False, DatasetLimits())
        assert experiment.agents["prover"].max_response_words == AgentSettings(model="m").max_response_words


def test_null_of_a_key_that_is_not_inherited_is_still_an_error(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    with pytest.raises(SpecError, match=r"dataset\.shuffle: expected true or false, not nothing"):
        load_spec(path, ["dataset.shuffle=null"])


def test_null_in_a_sweep_point_resets_a_key(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    assert [spec.experiment.seed for spec in load_specs(path, ["sweep={seed: [null, 1]}"])] == [0, 1]


def test_invalid_null_does_not_hide_other_problems(tmp_path: Path) -> None:
    path = spec_file(tmp_path, agents={"extra": 1}, sed=1)
    path.write_text(path.read_text("utf-8").replace('"extra": 1', '"extra": null'), "utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert [(problem.key, problem.what) for problem in caught.value.problems] == [
        ("agents.extra", "null deletes an inherited key, and this file has no `extends`"),
        ("sed", "unknown key"),
    ]
