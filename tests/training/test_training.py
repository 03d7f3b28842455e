"""Offline training runs: results, lineage, and the rollouts that each agent is trained on."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import Interrupted
from runner.cli.terminal.run_result import as_json
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status
from runner.runs.execution.accounting import Progress
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.loader import load_spec
from runner.training.plan import TrainingPlan
from runner.training.summary import progress_summary
from tests.cli.test_cli import run_cli
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.training import TEST, TRAIN, read_datasets, read_stages, run_training, training_spec

# Results of a training run


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of expert iteration: spec and results."""
    folder = tmp_path_factory.mktemp("finished")
    run_training(training_spec(folder, training={"test": {"scheme": "all"}}), folder / "results")
    return folder


@pytest.mark.full
def test_iterations_and_tests_are_separate_rows(finished_folder: Path) -> None:
    sql = "SELECT kind, iteration, parent_run_id, status, rollouts, training IS NULL FROM runs ORDER BY kind, iteration"
    _, rows = Results(finished_folder / "results").board.query(sql)
    run_id = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder.run_id
    assert rows == [
        *[("benchmark", iteration, run_id, "done", TEST, True) for iteration in (0, 1, 2)],
        *[("training", iteration, run_id, "done", TRAIN, False) for iteration in (0, 1)],
        ("training", None, None, "done", None, False),
    ]


@pytest.mark.full
def test_sql_query_returns_the_learning_curve(finished_folder: Path) -> None:
    sql = (
        "SELECT r.iteration, l.accuracy, l.models FROM leaderboard l JOIN runs r USING (run_id) "
        "WHERE r.parent_run_id IS NOT NULL ORDER BY r.iteration"
    )
    _, rows = Results(finished_folder / "results").board.query(sql)
    assert [row[0] for row in rows] == [0, 1, 2]
    assert rows[0][2] == "prover=dummy, verifier=dummy"
    assert len({row[2] for row in rows}) == 3


@pytest.mark.full
def test_finished_training_run_is_shown_and_not_played_again(finished_folder: Path) -> None:
    rerun = run_training(finished_folder / "spec.yaml", finished_folder / "results")
    assert rerun.was_finished
    assert [row["iteration"] for row in rerun.metrics["tests"]] == [0, 1, 2]
    show = nip_run_here("show", rerun.folder.run_id, cwd=finished_folder)
    assert show.returncode == 0
    assert "in the end" in show.stdout


def test_learning_curve_of_the_dummy_never_falls_and_is_drawn(finished_folder: Path) -> None:
    run_id = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder.run_id
    show = json.loads(nip_run_here("show", run_id, "--json", cwd=finished_folder).stdout)
    values = [row["accuracy"]["value"] for row in show["metrics"]["tests"]]
    assert values == sorted(values)  # too few datapoints to check how much it rises
    assert [part["run_id"] for part in show["parts"]] == [f"{run_id}-{part}" for part in ("i0", "t0", "i1", "t1", "t2")]
    chart = nip_run_here("show", "last", cwd=finished_folder).stdout
    assert [line.split("  ")[0] for line in chart.splitlines() if "●" in line or "-o" in line] == [
        "before iteration 0", "before iteration 1", "in the end",
    ]  # fmt: skip


def test_rollouts_of_all_parts_can_be_shown_and_parts_are_exported_separately(finished_folder: Path) -> None:
    run_id = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder.run_id
    sql = "SELECT rollout_id FROM rollouts WHERE run_id = ? LIMIT 1"
    _, rows = Results(finished_folder / "results").board.query(sql, [f"{run_id}-i1"])
    show = nip_run_here("show", run_id, rows[0][0], cwd=finished_folder)
    assert (show.returncode, show.stderr) == (0, f"from run {run_id}-i1\n")
    assert f"rollout {rows[0][0]}" in show.stdout
    missing = nip_run_here("show", run_id, "nowhere", cwd=finished_folder)
    assert missing.returncode == 2
    assert f"nip-run show RUN: {run_id}-i0, {run_id}-t0, {run_id}-i1" in missing.stderr
    exported = nip_run_here("export", run_id, "--format", "trl", cwd=finished_folder)
    assert exported.returncode == 2
    assert f"export those one by one: nip-run export {run_id}-i0 --format trl" in exported.stderr


def test_lineage_of_each_model_is_recorded(finished_folder: Path) -> None:
    folder = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    for group, settings in state.items():
        assert [step["iteration"] for step in settings["lineage"]] == [0, 1]
        assert settings["base_model"] == "dummy" == settings["lineage"][0]["from_model"]
        assert settings["lineage"][0]["model"] == settings["lineage"][1]["from_model"]
        assert settings["lineage"][1]["model"] == settings["model"]
        for step in settings["lineage"]:
            report = next(
                s for s in read_stages(folder) if (s["stage"], s["iteration"]) == ("datasets", step["iteration"])
            )
            assert step["dataset_sha256"] == report["groups"][group]["sha256"]


def test_next_iteration_plays_with_the_new_models(finished_folder: Path) -> None:
    folder = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    second = RunFolder(folder.path.with_name(folder.run_id + "-i1")).manifest()
    for row in second.agents:
        assert row["model"] == state[row["model_group"]]["lineage"][0]["model"]
        assert row["base_model"] == "dummy"


@pytest.mark.full
def test_every_dataset_line_is_traced_to_its_rollout(finished_folder: Path) -> None:
    folder = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder
    files = read_datasets(folder)
    for name in [name for name in files if not name.endswith(".trace.jsonl")]:
        traces = [json.loads(line) for line in files[name + ".trace.jsonl"].splitlines()]
        assert [trace["line"] for trace in traces] == list(range(1, len(files[name].splitlines()) + 1))
        for trace in traces:
            _, reward_rows = Results(finished_folder / "results").board.query(
                "SELECT rewards FROM rollouts WHERE run_id = ? AND rollout_id = ?",
                [trace["run_id"], trace["rollout_id"]],
            )
            assert json.loads(reward_rows[0][0])[trace["agent"]] == trace["reward"] >= 0.9


def test_saved_spec_of_a_training_run_is_a_valid_spec_with_the_same_datapoints(finished_folder: Path) -> None:
    folder = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder
    saved, original = load_spec(folder.spec), load_spec(finished_folder / "spec.yaml")
    assert saved.dataset.sha256 != ""
    assert [p.id for p in saved.dataset.datapoints] == [p.id for p in original.dataset.datapoints]
    assert saved.test is not None
    assert original.test is not None
    assert [p.id for p in saved.test.datapoints] == [p.id for p in original.test.datapoints]


@pytest.mark.full
def test_notes_of_parts_are_reported_with_the_names_of_the_parts(tmp_path: Path) -> None:
    path = training_spec(tmp_path, fine_tune={"min_examples": 1000}, training={"test": {"scheme": "none"}})
    result = run_training(path, tmp_path / "results")
    run_id = result.folder.run_id
    notes = [line for line in result.notes if "fewer than 1000 examples" in line]
    assert [line.partition(": ")[0] for line in notes] == [f"{run_id}-i0", f"{run_id}-i1"]
    assert result.metrics["games"]["rollouts"] == 2 * TRAIN == as_json(result)["rollouts"]


def test_progress_summary_names_the_next_unfinished_part(finished_folder: Path, tmp_path: Path) -> None:
    run_id = run_training(finished_folder / "spec.yaml", finished_folder / "results").folder.run_id
    shutil.copytree(finished_folder / "results", tmp_path / "results")
    folder = RunFolder(tmp_path / "results" / "runs" / run_id)
    lines = (folder.path / "stages.jsonl").read_bytes().splitlines(keepends=True)
    shutil.rmtree(folder.path / "iterations")
    for part in ("i0", "t0", "t2"):
        part_folder = RunFolder(folder.path.with_name(f"{run_id}-{part}"))
        part_folder.write_manifest(replace(part_folder.manifest(), status=Status.INTERRUPTED))
    expected = {
        1: f"iteration 0: its games ({run_id}-i0, interrupted)",
        2: f"iteration 0: its test ({run_id}-t0, interrupted)",
        3: "iteration 0: its datasets",
        len(lines) - 1: f"the last test ({run_id}-t2, interrupted)",
    }
    for line_count, next_step in expected.items():
        (folder.path / "stages.jsonl").write_bytes(b"".join(lines[:line_count]))
        assert progress_summary(folder)["next"] == [next_step]
    for part in ("i0", "t2"):  # stopped after its games and before the line that records them
        part_folder = RunFolder(folder.path.with_name(f"{run_id}-{part}"))
        part_folder.write_manifest(replace(part_folder.manifest(), status=Status.DONE))
    for line_count, next_step in {1: expected[2], len(lines) - 1: "only the summary is left"}.items():
        (folder.path / "stages.jsonl").write_bytes(b"".join(lines[:line_count]))
        assert progress_summary(folder)["next"] == [next_step]
    wrong_games = run_cli("show", run_id, "--wrong", "--repeat", "1", "--results", "results", cwd=tmp_path)
    runs_table = run_cli("runs", "-v", "--results", "results", cwd=tmp_path).stdout
    total = re.search(rf"^{run_id} +\w+ +(\d+) ", runs_table, re.MULTILINE)
    assert total is not None
    assert int(total[1]) == sum(map(int, re.findall(rf"^{run_id}-\w+ +\w+ +(\d+) ", runs_table, re.MULTILINE))) > 0
    assert wrong_games.stderr.endswith(
        f"games and tests. Show one of these: nip-run show {run_id}-t2 --wrong --repeat 1\n"
    )


def test_interrupt_message_names_the_training_run_and_its_part(tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"^run (learn-\w+) was interrupted in \1-i0; run the same command "):
        run_training(training_spec(tmp_path), tmp_path / "results", on_rollout=interrupt)


# Trained agents


@pytest.mark.full
def test_provers_with_a_shared_model_train_it_once_on_both_agents_examples(tmp_path: Path) -> None:
    path = training_spec(
        tmp_path,
        protocol={"use": "debate", "max_message_rounds": 4},
        prompts="prompts/code_validation/debate",
        agents={"prover": None, "prover0": {"model": "p"}, "prover1": {"model": "p"}},
        training={"selection": {"reward_threshold": 0.0}},
    )
    folder = run_training(path, tmp_path / "results").folder
    records = read_stages(folder)
    for iteration in (0, 1):
        assert sum((r["stage"], r.get("group"), r["iteration"]) == ("trained", "p", iteration) for r in records) == 1
        trace = folder.path / "iterations" / str(iteration) / "p.sft.jsonl.trace.jsonl"
        agents = [json.loads(line)["agent"] for line in trace.read_text("utf-8").splitlines()]
        assert agents == sorted(agents)
        assert set(agents) == {"prover0", "prover1"}


@pytest.mark.full
def test_frozen_agent_is_not_trained(tmp_path: Path) -> None:
    path = training_spec(tmp_path, agents={"verifier": {"freeze": True}}, training={"trainers": {"v": None}})
    folder = run_training(path, tmp_path / "results").folder
    assert not list(folder.path.rglob("v.sft*"))
    assert not [record for record in read_stages(folder) if record.get("group") == "v"]
    last = RunFolder(folder.path.with_name(folder.run_id + "-t2")).manifest()
    assert {row["agent"]: row["model"] for row in last.agents}["verifier"] == "dummy"


@pytest.mark.full
def test_model_with_too_few_examples_is_unchanged_and_reported(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"min_examples": 1000, "iterations": 1})
    result = run_training(path, tmp_path / "results")
    _, rows = Results(tmp_path / "results").board.query(
        "SELECT training FROM runs WHERE iteration = 0 AND kind = 'training'"
    )
    outcomes = json.loads(rows[0][0])
    assert {group: outcome["outcome"] for group, outcome in outcomes.items()} == dict.fromkeys("pv", "too_few_examples")
    assert result.metrics["iterations"][0]["models"]["p"]["model"] == "dummy"
    show = nip_run_here("spec.yaml", cwd=tmp_path)
    assert "not trained: fewer than 1000 examples" in show.stdout


@pytest.mark.full
def test_weighted_sampling_trains_no_group_if_all_rewards_are_equal(tmp_path: Path) -> None:
    no_rewards = {"verifier_reward": 0.0, "verifier_incorrect_penalty": 0.0, "verifier_terminated_penalty": 0.0}
    path = training_spec(
        tmp_path,
        protocol={**no_rewards, "prover_reward": 0.0},
        training={"selection": {"method": "weighted_sampling"}, "iterations": 1},
    )
    result = run_training(path, tmp_path / "results")
    (row,) = result.metrics["iterations"]
    assert {outcome["outcome"] for outcome in row["outcomes"].values()} == {"too_few_examples"}
    report = next(record for record in read_stages(result.folder) if record["stage"] == "datasets")
    assert "no rollout has a positive weight" in report["groups"]["p"]["notes"][0]


@pytest.mark.full
def test_replaced_guesses_train_a_verifier_with_equal_rewards(tmp_path: Path) -> None:
    selection = {"method": "weighted_sampling", "minimum": 100.0}
    changes = {"selection": selection, "guess_replacement": {"proportion": 0.5}, "iterations": 1}
    result = run_training(training_spec(tmp_path, training=changes), tmp_path / "results")
    (row,) = result.metrics["iterations"]
    assert row["outcomes"]["p"]["outcome"] == "too_few_examples"
    assert row["outcomes"]["v"]["outcome"] == "trained"
    trace = (result.folder.path / "iterations" / "0" / "v.sft.jsonl.trace.jsonl").read_text("utf-8").splitlines()
    assert len({json.loads(line)["rollout_id"] for line in trace}) == TRAIN // 2  # each of its turns is an example
    assert "no rollout with the agent's own answers is in the dataset" in row["outcomes"]["v"]["notes"][0]
    _, stored = Results(tmp_path / "results").board.query(
        "SELECT training FROM runs WHERE iteration = 0 AND kind = 'training'"
    )
    assert json.loads(stored[0][0]) == row["outcomes"]
    show = nip_run_here("show", result.folder.run_id, cwd=tmp_path)
    assert "no rollout has a positive weight" in " ".join(show.stdout.split())


@pytest.mark.full
def test_training_uses_all_previous_rollouts_or_only_the_latest(tmp_path: Path) -> None:
    parts_by_setting = {}
    for use_all in (False, True):
        path = training_spec(tmp_path / str(use_all), training={"on_all_previous_rollouts": use_all})
        folder = run_training(path, tmp_path / str(use_all) / "results").folder
        trace = (folder.path / "iterations" / "1" / "v.sft.jsonl.trace.jsonl").read_text("utf-8").splitlines()
        parts_by_setting[use_all] = {json.loads(line)["run_id"].rpartition("-")[2] for line in trace}
    assert parts_by_setting == {False: {"i1"}, True: {"i0", "i1"}}


@pytest.mark.full
def test_jobs_from_scratch_start_from_the_base_model(tmp_path: Path) -> None:
    folder = run_training(training_spec(tmp_path, training={"from_scratch": True}), tmp_path / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    for settings in state.values():
        (step,) = settings["lineage"]
        assert (step["from_model"], step["iteration"]) == ("dummy", 1)


@pytest.mark.full
def test_from_scratch_can_be_set_for_each_trainer(tmp_path: Path) -> None:
    changes = {"from_scratch": True, "trainers": {"v": {"from_scratch": False}}}
    folder = run_training(training_spec(tmp_path, training=changes), tmp_path / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    assert {group: [step["iteration"] for step in group_state["lineage"]] for group, group_state in state.items()} == {
        "p": [1],
        "v": [0, 1],
    }
    saved = load_spec(folder.spec, ["training.from_scratch=false"]).experiment.training
    assert saved is not None
    assert {group: saved.starts_from_scratch(group) for group in ("p", "v")} == {"p": False, "v": False}


def test_datapoints_are_used_equally_often_and_once_per_iteration(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"datapoints_per_iteration": 5, "iterations": 24})
    plan = TrainingPlan(load_spec(path))
    ids_by_iteration = [[point.id for point in plan.datapoints(iteration)] for iteration in range(24)]
    assert all(len(set(ids)) == 5 for ids in ids_by_iteration)
    all_ids = [name for ids in ids_by_iteration for name in ids]
    assert {all_ids.count(name) for name in all_ids} == {10}  # 24 x 5 of 12


def test_iterations_of_large_datasets_are_planned_without_comparing_datapoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TrainingPlan(load_spec(training_spec(tmp_path, training={"datapoints_per_iteration": 5})))

    def fail(one: Datapoint, other: object) -> bool:
        raise AssertionError(one, other)  # the time would grow with the square of the number of datapoints

    monkeypatch.setattr(Datapoint, "__eq__", fail)
    assert len(plan.datapoints(23)) == 5


@pytest.mark.full
def test_watch_callback_receives_each_stage_with_its_iteration(tmp_path: Path) -> None:
    stages: dict[str, None] = {}
    calls: list[int] = []

    def record_progress(progress: Progress) -> None:
        stages.setdefault(progress.stage)
        if progress.stage.endswith("fine-tuning p, v"):
            calls.append(progress.calls)

    run_spec(training_spec(tmp_path), tmp_path / "results", watch=record_progress)
    first = "iteration 0 (1 of 2)"
    assert list(stages)[:3] == [f"{first}: games", f"{first}: building datasets", f"{first}: fine-tuning p, v"]
    assert "iteration 1 (2 of 2): fine-tuning p, v" in stages
    assert 0 < calls[0] < calls[-1], "the calls and the cost of the games before stay in sight"
