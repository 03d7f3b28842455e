"""Checks of training specs before any game is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.spec.checks.trees import tree_calls
from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import check_warnings_of
from tests.support.processes import nip_run_here
from tests.support.training import TEST, TRAIN, malt_changes, provider_changes, training_spec

UNUSED_URL = "http://127.0.0.1:9/v1"


@pytest.mark.sample(13)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": None}, "a training run needs a section `training`"),
        ({"kind": "benchmark"}, "works only with `kind: training`"),
        (
            {"training": {"trainers": {"p": None}}},
            "'p' (used by prover); add training.trainers.p or set agents.prover.freeze: true",
        ),
        (provider_changes(UNUSED_URL, training={"min_examples": 9}), "openai` needs at least 10 examples"),
        ({"training": {"trainers": {"q": {"backend": "dummy"}}}}, "no model group 'q'"),
        ({"training": {"trainers": {"p": {"backend": "openai"}}}}, "the group's provider dummy has no fine-tuning"),
        ({"training": {"trainers": {"p": {"backend": "command"}}}}, "required by `backend: command`"),
        (
            {"training": {"trainers": {"p": {"backend": "command", "command": ["true", "{datset}"]}}}},
            "unknown placeholder {datset}; did you mean 'dataset'?",
        ),
        (
            {"agents": {"prover": {"freeze": True}, "verifier": {"freeze": True}}, "training": {"trainers": {}}},
            "all agents are frozen",
        ),
        ({"models": {"p": {"provider": "openai", "model": "m"}}}, "so no server knows its models"),
        ({"training": {"method": "malt"}}, "malt needs at least two responses per step; set rollouts."),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "expert_iteration plays single games"),
        (malt_changes(training={"guess_replacement": {"proportion": 0.5}}), "malt replaces no guesses"),
        ({"training": {"datapoints_per_iteration": 13}}, "13 is more than the 12 datapoints"),
        ({"training": {"test": {"split": "train"}}}, "these datapoints are also trained on"),
        ({"training": {"test": {"split": "tset"}}}, "training.test.split: no row has this split"),
        ({"agents": {"verifier": {"freeze": True, "model": "p"}}}, "would change its model too"),
        (malt_changes(rollouts={"max_calls": 100}), "grow exponentially with their rounds"),
        (
            {"training": {"selection": {"method": "weighted_sampling", "replacement": False, "sample_size_factor": 2}}},
            "a sample without replacement cannot be larger",
        ),
        ({"training": {"guess_replacement": {"annealing": "cosine"}}}, "cosine"),
    ],
)  # fmt: skip
def test_training_spec_that_cannot_be_played_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(training_spec(tmp_path, **changes))
    assert message in str(caught.value)


def test_check_reports_the_maximum_number_of_calls_of_trees(tmp_path: Path) -> None:
    training_spec(tmp_path, **malt_changes())
    check = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert check.returncode == 0, check.stderr
    assert "exponential in their 4 rounds, at most 360 calls" in check.stdout  # 12 x (2 + 4 + 8 + 16)
    assert not (tmp_path / "results").exists()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["none", "all", "last", "first_and_last"])
def test_check_counts_the_rollouts_of_every_test_scheme(tmp_path: Path, scheme: str) -> None:
    training_spec(tmp_path)
    check = nip_run_here("check", "spec.yaml", f"training.test.scheme={scheme}", "--json", cwd=tmp_path)
    tests = {"none": 0, "all": 3, "last": 1, "first_and_last": 2}[scheme]
    assert json.loads(check.stdout)[0]["rollouts"] == 2 * TRAIN + tests * TEST


def test_tree_calls_count_one_of_several_sampled_speakers(tmp_path: Path) -> None:
    protocol = {"use": "merlin_arthur", "max_message_rounds": None}
    path = training_spec(
        tmp_path,
        **malt_changes(
            protocol=protocol,
            prompts="prompts/code_validation/merlin_arthur",
            agents={"prover": None, "prover0": {"model": "p"}, "prover1": {"model": "p"}},
        ),
    )
    spec = load_spec(path)
    assert tree_calls(spec.protocol, 2) == sum(2 ** (r + 1) for r in range(spec.protocol.max_message_rounds))


def test_training_datapoint_in_the_test_split_is_rejected_despite_a_different_unused_column(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    data = tmp_path / "data.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    test_row = next(row for row in rows if row["split"] == "test")
    train_row = next(row for row in rows if row["split"] == "train")
    copied_row = {**train_row, "id": "again", "split": "test"}

    def write_rows(*more: dict[str, Any]) -> None:
        numbered = [{**row, "row": number} for number, row in enumerate([*rows, *more])]
        data.write_text("".join(json.dumps(row) + "\n" for row in numbered))

    write_rows()
    load_spec(path)
    write_rows(copied_row)
    with pytest.raises(SpecError, match="these datapoints are also trained on: again"):
        load_spec(path)
    write_rows({**test_row, "id": train_row["id"], "question": "another"})
    with pytest.raises(SpecError, match=f"these datapoints are also trained on: {train_row['id']}"):
        load_spec(path)


def collect_warnings(folder: Path, *overrides: str, **test_columns: Any) -> list[str]:
    """Return the warnings of `check` for 12 datapoints per split; `test_columns` replace columns of the test split."""
    path = training_spec(folder)
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == "train"]
    tests = [{**row, "id": f"test{i}", "split": "test", "question": f"{i} " * 40} for i, row in enumerate(rows)]
    tests = [{**row, **test_columns} for row in tests]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows + tests)) + "\n")
    return [line for line in check_warnings_of(load_spec(path, overrides)) if "wasted" not in line]


def test_check_warns_about_a_test_split_too_small_or_uniform_to_measure_accuracy(tmp_path: Path) -> None:
    assert collect_warnings(tmp_path) == []
    (line,) = collect_warnings(tmp_path, "training.test.limit=4")
    assert line.startswith("the test split has only 4 datapoints: intervals need at least 10 independent datapoints; ")
    assert line.endswith("add some, or raise training.test.limit")
    (line,) = collect_warnings(tmp_path, label=1)
    assert line.startswith("all 12 datapoints of the test split have label 1: a verifier that always accepts is always")
    assert collect_warnings(tmp_path, "training.test.scheme=none", label=1) == []


def test_warning_reports_questions_shared_within_the_test_split(tmp_path: Path) -> None:
    (line,) = collect_warnings(tmp_path, question="Write f(x) that returns x, and nothing else than x.")
    assert line.startswith("in the test split, 12 of 12 datapoints ")
    assert "set dataset.group_by" in line
