"""Training runs, offline: what they leave, that they go on after any stage, and what they refuse to train."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runner.commands.run import as_json
from runner.errors import JournalError, RunDirectoryError, RunError, SpecError, UsageError, Waiting
from runner.ids import file_hash
from runner.leaderboard import query
from runner.rundir import RunFolder
from runner.runs import lock_run
from runner.spec.load import load_spec
from runner.spec.training import tree_calls
from runner.training.plan import TrainingPlan
from runner.training.report import progress
from runner.training.run import train
from tests.server.play import nip_run
from tests.training import TEST, TRAIN, datasets_of, malt, stages_of, trained, training_spec

# What a training run leaves


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of expert iteration: spec and results."""
    folder = tmp_path_factory.mktemp("finished")
    trained(training_spec(folder, training={"test": {"scheme": "all"}}), folder / "results")
    return folder


def test_every_iteration_and_every_test_is_a_row_of_its_own(finished: Path) -> None:
    sql = "SELECT kind, iteration, parent_run_id, status, rollouts, training IS NULL FROM runs ORDER BY kind, iteration"
    _, rows = query(finished / "results", sql)
    run_id = trained(finished / "spec.yaml", finished / "results").folder.run_id
    assert rows == [
        *[("benchmark", iteration, run_id, "done", TEST, True) for iteration in (0, 1, 2)],
        *[("training", iteration, run_id, "done", TRAIN, False) for iteration in (0, 1)],
        ("training", None, None, "done", None, False),
    ]


def test_sql_draws_the_learning_curve(finished: Path) -> None:
    sql = (
        "SELECT r.iteration, l.accuracy, l.models FROM leaderboard l JOIN runs r USING (run_id) "
        "WHERE r.parent_run_id IS NOT NULL ORDER BY r.iteration"
    )
    _, rows = query(finished / "results", sql)
    assert [row[0] for row in rows] == [0, 1, 2]
    assert rows[0][2] == "prover=dummy, verifier=dummy"
    assert len({row[2] for row in rows}) == 3


def test_a_finished_training_run_is_shown_and_not_played_again(finished: Path) -> None:
    again = trained(finished / "spec.yaml", finished / "results")
    assert again.was_finished
    assert [row["iteration"] for row in again.metrics["tests"]] == [0, 1, 2]
    shown = nip_run("show", again.folder.run_id, cwd=finished)
    assert shown.returncode == 0
    assert "in the end" in shown.stdout


def test_a_rollout_of_any_iteration_is_shown_and_games_are_exported_part_by_part(finished: Path) -> None:
    run_id = trained(finished / "spec.yaml", finished / "results").folder.run_id
    sql = "SELECT rollout_id FROM rollouts WHERE run_id = ? LIMIT 1"
    _, rows = query(finished / "results", sql, [f"{run_id}-i1"])
    shown = nip_run("show", run_id, rows[0][0], cwd=finished)
    assert (shown.returncode, shown.stderr) == (0, f"of run {run_id}-i1\n")
    assert f"rollout {rows[0][0]}" in shown.stdout
    missing = nip_run("show", run_id, "nowhere", cwd=finished)
    assert missing.returncode == 2
    assert f"its games are those of runs {run_id}-i0, {run_id}-t0, {run_id}-i1" in missing.stderr
    exported = nip_run("export", run_id, "--format", "trl", cwd=finished)
    assert exported.returncode == 2
    assert f"each exported by itself: nip-run export {run_id}-i0 --format trl" in exported.stderr


def test_each_model_says_what_it_came_from(finished: Path) -> None:
    folder = trained(finished / "spec.yaml", finished / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    for group, settings in state.items():
        assert [step["iteration"] for step in settings["lineage"]] == [0, 1]
        assert settings["base_model"] == "dummy" == settings["lineage"][0]["from_model"]
        assert settings["lineage"][0]["model"] == settings["lineage"][1]["from_model"]
        assert settings["lineage"][1]["model"] == settings["model"]
        for step in settings["lineage"]:
            report = next(
                s for s in stages_of(folder) if (s["stage"], s["iteration"]) == ("datasets", step["iteration"])
            )
            assert step["dataset_sha256"] == report["groups"][group]["sha256"]


def test_the_next_iteration_plays_with_the_new_models(finished: Path) -> None:
    folder = trained(finished / "spec.yaml", finished / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    second = RunFolder(folder.path.with_name(folder.run_id + "-i1")).manifest()
    for row in second["agents"]:
        assert row["model"] == state[row["model_group"]]["lineage"][0]["model"]
        assert row["base_model"] == "dummy"


def test_every_line_of_a_dataset_is_traced_to_its_rollout(finished: Path) -> None:
    folder = trained(finished / "spec.yaml", finished / "results").folder
    files = datasets_of(folder)
    for name in [name for name in files if not name.endswith(".trace.jsonl")]:
        traces = [json.loads(line) for line in files[name + ".trace.jsonl"].splitlines()]
        assert [trace["line"] for trace in traces] == list(range(1, len(files[name].splitlines()) + 1))
        for trace in traces:
            _, found = query(
                finished / "results",
                "SELECT rewards FROM rollouts WHERE run_id = ? AND rollout_id = ?",
                [trace["run_id"], trace["rollout_id"]],
            )
            assert json.loads(found[0][0])[trace["agent"]] == trace["reward"] >= 0.9


def test_the_saved_spec_of_a_training_run_is_a_valid_spec_of_the_same_run(finished: Path) -> None:
    folder = trained(finished / "spec.yaml", finished / "results").folder
    saved, given = load_spec(folder.spec), load_spec(finished / "spec.yaml")
    assert saved.dataset.sha256 != ""
    assert [p.id for p in saved.dataset.datapoints] == [p.id for p in given.dataset.datapoints]
    assert saved.test is not None
    assert given.test is not None
    assert [p.id for p in saved.test.datapoints] == [p.id for p in given.test.datapoints]


def test_what_its_parts_have_to_note_is_noted_with_their_names(tmp_path: Path) -> None:
    path = training_spec(tmp_path, fine_tune={"min_examples": 1000}, training={"test": {"scheme": "none"}})
    result = trained(path, tmp_path / "results")
    run_id = result.folder.run_id
    assert [line.partition(": ")[0] for line in result.notes] == [f"{run_id}-i0", f"{run_id}-i1"]
    assert all("fewer than 1000 examples" in line for line in result.notes)
    assert result.metrics["games"]["rollouts"] == 2 * TRAIN == as_json(result)["rollouts"]


# Going on


@pytest.mark.parametrize("changes", [{}, malt(rollouts={"concurrency": 3})], ids=["expert_iteration", "malt"])
def test_a_run_that_was_killed_after_any_stage_comes_to_the_same_end(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = training_spec(tmp_path, **changes)
    whole = trained(path, tmp_path / "results").folder
    lines = (whole.path / "stages.jsonl").read_bytes().splitlines(keepends=True)
    state, datasets = (whole.path / "state.json").read_bytes(), datasets_of(whole)
    assert len(lines) > 8
    for kept in range(1, len(lines)):
        shutil.copytree(tmp_path / "results", tmp_path / f"cut{kept}")
        cut = RunFolder(tmp_path / f"cut{kept}" / "runs" / whole.run_id)
        (cut.path / "stages.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
        manifest = cut.manifest()
        cut.write_manifest({**manifest, "status": "running"})
        journals = {p: p.read_bytes() for p in sorted((cut.path.parent).glob("*/journal.jsonl"))}
        again = trained(path, tmp_path / f"cut{kept}").folder
        assert (again.path / "state.json").read_bytes() == state
        assert datasets_of(again) == datasets
        assert {p: p.read_bytes() for p in journals} == journals
        assert len(stages_of(again)) == len(lines)


def test_more_iterations_go_on_where_fewer_ended(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    short = trained(path, tmp_path / "results").folder
    before = datasets_of(short)
    longer = trained(path, tmp_path / "results", "training.iterations=3").folder
    assert longer.run_id == short.run_id
    assert {name: data for name, data in datasets_of(longer).items() if name in before} == before
    assert len(list(longer.path.glob("iterations/*"))) == 3


def test_datasets_are_the_same_in_another_process_with_another_hash_seed(tmp_path: Path) -> None:
    changes = {"selection": {"method": "weighted_sampling"}, "guess_replacement": {"proportion": 0.5}}
    training_spec(tmp_path, training=changes)
    found = []
    for seed in ("0", "1"):
        done = nip_run("spec.yaml", "--results", f"r{seed}", cwd=tmp_path, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        (folder,) = (p.parent for p in (tmp_path / f"r{seed}").glob("runs/*/stages.jsonl"))
        found.append(datasets_of(RunFolder(folder)))
    assert found[0] == found[1]
    assert any(b"guess_replaced" in data for data in found[0].values())


def test_fewer_iterations_than_were_done_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    done = trained(path, tmp_path / "results").folder
    before = done.manifest_path.read_bytes(), done.spec.read_bytes()
    with pytest.raises(UsageError, match=r"1 is fewer than the 2 that run .* has done"):
        trained(path, tmp_path / "results", "training.iterations=1")
    assert (done.manifest_path.read_bytes(), done.spec.read_bytes()) == before


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("training.test.limit=3", "training.test.limit"),
        ("training.min_examples=3", "training.min_examples"),
        ("rollouts.per_datapoint=2", "rollouts.per_datapoint"),
        ("agents.prover.freeze=true", "agents.prover.freeze"),
        ("dataset.limit=5", "dataset.limit"),
        ("models.p.temperature=0.5", "models.p.temperature"),
    ],
)
def test_what_makes_another_run_is_named_where_the_id_is_taken(tmp_path: Path, override: str, keys: str) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"trainers": trainers})
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", run_id="mine")
    free = ("training.iterations=3", "rollouts.concurrency=2", "description=x", "models.p.timeout=9")
    drop = ("~training.trainers.p",) if "freeze" in override else ()
    with pytest.raises(RunDirectoryError, match=f"these keys differ: {keys}\\. Choose another"):
        trained(path, tmp_path / "results", override, *free, *drop, run_id="mine")


def test_games_and_training_are_not_one_run(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    trained(path, tmp_path / "results", run_id="mine")
    with pytest.raises(RunDirectoryError, match=r"these keys differ: kind\. Choose"):
        trained(path, tmp_path / "results", "kind=benchmark", "training=null", run_id="mine")


def test_an_id_that_leaves_no_room_for_its_parts_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = training_spec(tmp_path, budget={"completions": 10_000})
    for run_id in ("x" * 115, "x" * 120):
        with pytest.raises(UsageError, match="a training run's may have 114"):
            trained(path, tmp_path / "results", run_id=run_id)
    refused = nip_run("spec.yaml", "--run-id", "x" * 115, cwd=tmp_path)
    assert refused.returncode == 2
    assert not (tmp_path / "results").exists()


def test_a_log_that_is_gone_or_damaged_begins_no_jobs_anew(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", run_id="mine")
    log = tmp_path / "results" / "runs" / "mine" / "stages.jsonl"
    whole = log.read_bytes()
    second = whole.index(b"\n") + 1
    for damaged, message in (
        (whole[:second] + b"x" + whole[second + 1 :], "is damaged, though the run has built datasets"),
        (b"x" + whole[1:], "is damaged, though the run has built datasets"),
        (b"x" + whole.splitlines(keepends=True)[0][1:], "is damaged, though the run has built datasets"),
        (b"", "is damaged, though the run has built datasets"),
        (None, "is gone, though the run has built datasets"),
    ):
        log.unlink() if damaged is None else log.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(JournalError, match=message):
                trained(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})
    log.write_bytes(whole)
    trained(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})


@pytest.mark.parametrize(("part", "file"), [("i0", "manifest.json"), ("i0", "journal.jsonl"), ("t0", "metrics.json")])
def test_a_part_that_is_gone_is_named_with_what_it_was(tmp_path: Path, part: str, file: str) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    test = {"scheme": "all", "limit": 2}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": test})
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", run_id="mine")
    (tmp_path / "results" / "runs" / f"mine-{part}" / file).unlink()
    what = "the games" if part == "i0" else "the test"
    with pytest.raises(RunError, match=f"run mine-{part} is a part of training run mine: {what} of iteration 0"):
        trained(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})


def test_a_second_process_is_told_who_has_the_run(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    with lock_run(tmp_path / "results", "mine"):
        second = nip_run("spec.yaml", "--run-id", "mine", cwd=tmp_path)
    assert second.returncode == 1
    assert f"run mine is in use by process {os.getpid()} on " in second.stderr
    assert list((tmp_path / "results" / "runs").iterdir()) == [tmp_path / "results" / "runs" / "mine"]
    trained(path, tmp_path / "results", run_id="mine")


# Who is trained


def test_provers_that_share_a_model_train_it_once_on_both_agents_examples(tmp_path: Path) -> None:
    path = training_spec(
        tmp_path,
        protocol={"use": "debate", "max_message_rounds": 4},
        prompts="prompts/code_validation/debate",
        agents={"prover": None, "prover0": {"model": "p"}, "prover1": {"model": "p"}},
        training={"selection": {"reward_threshold": 0.0}},
    )
    folder = trained(path, tmp_path / "results").folder
    records = stages_of(folder)
    for iteration in (0, 1):
        assert sum((r["stage"], r.get("group"), r["iteration"]) == ("trained", "p", iteration) for r in records) == 1
        trace = folder.path / "iterations" / str(iteration) / "p.sft.jsonl.trace.jsonl"
        agents = [json.loads(line)["agent"] for line in trace.read_text("utf-8").splitlines()]
        assert agents == sorted(agents)
        assert set(agents) == {"prover0", "prover1"}


def test_a_frozen_agent_never_trains(tmp_path: Path) -> None:
    path = training_spec(tmp_path, agents={"verifier": {"freeze": True}}, training={"trainers": {"v": None}})
    folder = trained(path, tmp_path / "results").folder
    assert not list(folder.path.rglob("v.sft*"))
    assert not [record for record in stages_of(folder) if record.get("group") == "v"]
    last = RunFolder(folder.path.with_name(folder.run_id + "-t2")).manifest()
    assert {row["agent"]: row["model"] for row in last["agents"]}["verifier"] == "dummy"


def test_too_few_examples_are_said_in_the_row_and_leave_the_model_as_it_was(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"min_examples": 1000, "iterations": 1})
    result = trained(path, tmp_path / "results")
    _, rows = query(tmp_path / "results", "SELECT training FROM runs WHERE iteration = 0 AND kind = 'training'")
    outcomes = json.loads(rows[0][0])
    assert {group: outcome["outcome"] for group, outcome in outcomes.items()} == dict.fromkeys("pv", "too_few_examples")
    assert result.metrics["iterations"][0]["models"]["p"]["model"] == "dummy"
    shown = nip_run("spec.yaml", cwd=tmp_path)
    assert "not trained: fewer than 1000 examples" in shown.stdout


def test_where_all_rollouts_paid_the_same_weighted_sampling_trains_nobody(tmp_path: Path) -> None:
    flat = {"verifier_reward": 0.0, "verifier_incorrect_penalty": 0.0, "verifier_terminated_penalty": 0.0}
    path = training_spec(
        tmp_path,
        protocol={**flat, "prover_reward": 0.0},
        training={"selection": {"method": "weighted_sampling"}, "iterations": 1},
    )
    result = trained(path, tmp_path / "results")
    (row,) = result.metrics["iterations"]
    assert {outcome["outcome"] for outcome in row["outcomes"].values()} == {"too_few_examples"}
    report = next(record for record in stages_of(result.folder) if record["stage"] == "datasets")
    assert "nothing tells the rollouts apart" in report["groups"]["p"]["notes"][0]


def test_replaced_guesses_train_the_verifier_where_nothing_tells_its_rollouts_apart(tmp_path: Path) -> None:
    selection = {"method": "weighted_sampling", "minimum": 100.0}
    changes = {"selection": selection, "guess_replacement": {"proportion": 0.5}, "iterations": 1}
    result = trained(training_spec(tmp_path, training=changes), tmp_path / "results")
    (row,) = result.metrics["iterations"]
    assert row["outcomes"]["p"]["outcome"] == "too_few_examples"
    assert (row["outcomes"]["v"]["outcome"], row["outcomes"]["v"]["examples"]) == ("trained", TRAIN // 2)
    assert "none is trained on as it was played" in row["outcomes"]["v"]["notes"][0]
    _, stored = query(tmp_path / "results", "SELECT training FROM runs WHERE iteration = 0 AND kind = 'training'")
    assert json.loads(stored[0][0]) == row["outcomes"]
    shown = nip_run("show", result.folder.run_id, cwd=tmp_path)
    assert "nothing tells the rollouts apart" in " ".join(shown.stdout.split())


def test_all_previous_rollouts_or_the_last_alone(tmp_path: Path) -> None:
    seen = {}
    for everything in (False, True):
        path = training_spec(tmp_path / str(everything), training={"on_all_previous_rollouts": everything})
        folder = trained(path, tmp_path / str(everything) / "results").folder
        trace = (folder.path / "iterations" / "1" / "v.sft.jsonl.trace.jsonl").read_text("utf-8").splitlines()
        seen[everything] = {json.loads(line)["run_id"].rpartition("-")[2] for line in trace}
    assert seen == {False: {"i1"}, True: {"i0", "i1"}}


def test_from_scratch_each_job_starts_from_the_base_model(tmp_path: Path) -> None:
    folder = trained(training_spec(tmp_path, training={"from_scratch": True}), tmp_path / "results").folder
    state = json.loads((folder.path / "state.json").read_text("utf-8"))
    for settings in state.values():
        (step,) = settings["lineage"]
        assert (step["from_model"], step["iteration"]) == ("dummy", 1)


def test_no_datapoint_is_skipped_and_none_comes_twice_in_an_iteration(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"datapoints_per_iteration": 5, "iterations": 24})
    plan = TrainingPlan(load_spec(path))
    played = [[point.id for point in plan.datapoints(iteration)] for iteration in range(24)]
    assert all(len(set(ids)) == 5 for ids in played)
    everything = [name for ids in played for name in ids]
    assert {everything.count(name) for name in everything} == {10}  # 24 x 5 of 12


# A model that is trained by hand


def test_the_files_backend_waits_for_the_model_and_goes_on_with_it(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    waits = nip_run("spec.yaml", cwd=tmp_path)
    assert waits.returncode == 1
    assert waits.stderr.splitlines()[-1] == "Go on with: nip-run run spec.yaml --set-model p=NAME"
    assert "Traceback" not in waits.stderr
    wrong = nip_run("spec.yaml", "--set-model", "q=mine", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "no such model group" in wrong.stderr
    done = nip_run("spec.yaml", "--set-model", "p=mine-1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["iterations"][0]["models"]["p"]["model"] == "mine-1"


def three_groups(folder: Path, p: dict[str, Any], q: dict[str, Any], **training: Any) -> Path:
    """Two provers and a verifier, each a model of its own; the verifier's is a dummy that has trained at once."""
    return training_spec(
        folder,
        protocol={"use": "mnip"},
        prompts="prompts/code_validation/mnip",
        models={"q": {"provider": "dummy"}},
        agents={"prover": None, "prover0": {"model": "p"}, "prover1": {"model": "q"}},
        training={
            "iterations": 1, "min_examples": 1, "selection": {"reward_threshold": -1}, "test": {"scheme": "none"},
            "trainers": {"p": p, "q": q}, **training,
        },
    )  # fmt: skip


def test_a_job_that_failed_is_said_where_another_has_trained_and_a_third_waits(tmp_path: Path) -> None:
    fails = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    path = three_groups(tmp_path, fails, {"backend": "files"})
    with pytest.raises(RunError, match="training p failed"):
        trained(path, tmp_path / "results", run_id="mine")
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", "training.trainers.p={backend: dummy}", run_id="mine")


def test_a_trainer_that_cannot_be_started_is_an_error_before_a_game_is_played(tmp_path: Path) -> None:
    lost = {"backend": "command", "command": ["no-such-trainer", "{dataset}", "{model_file}"]}
    path = training_spec(tmp_path, training={"trainers": {"p": lost}})
    with pytest.raises(RunError, match=r"training\.trainers\.p\.command: there is no program 'no-such-trainer'"):
        trained(path, tmp_path / "results", run_id="mine")
    assert [run.name for run in (tmp_path / "results" / "runs").iterdir()] == ["mine"]


def test_only_jobs_that_go_on_say_how_soon_to_look_again(tmp_path: Path) -> None:
    code = "import sys, time; time.sleep(0.2); open(sys.argv[2], 'w').write('better')"
    command = [sys.executable, "-c", code, "{dataset}", "{model_file}"]
    trainers = {
        "p": {"backend": "command", "command": command, "poll_seconds": 0.05},
        "v": {"backend": "dummy", "poll_seconds": 0.01},
    }
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": {"scheme": "none"}})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    train(load_spec(path), tmp_path / "results", sleep=sleep)
    assert set(waits) == {0.05}


def test_waiting_is_an_interrupted_run_and_costs_no_second_game(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    for _ in range(2):
        with pytest.raises(Waiting):
            trained(path, tmp_path / "results")
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 2
    _, rows = query(tmp_path / "results", "SELECT status FROM runs WHERE parent_run_id IS NULL")
    assert rows == [("interrupted",)]


def test_show_tells_how_far_a_run_has_come_and_what_it_waits_for(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"trainers": trainers, "test": {"scheme": "all", "limit": 2}})
    for names in ({}, {"p": "first"}):
        with pytest.raises(Waiting):
            trained(path, tmp_path / "results", run_id="mine", set_model=names)
    shown = nip_run("show", "mine", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert f"rollouts {2 * TRAIN + 2 * 2} completions" in text
    assert "before iteration 1" in text
    assert "first" in text
    assert "in the end" not in text
    assert f"{Path('results/runs/mine/iterations/1/p.job/README.txt')}); go on with --set-model p=NAME" in text
    assert "next: iteration 1: v: trained: dummy:dummy-" in text
    for part in ("i1", "t1"):
        (tmp_path / "results" / "runs" / f"mine-{part}" / "manifest.json").unlink()
    shown = nip_run("show", "mine", cwd=tmp_path)
    assert shown.returncode == 1
    assert "the test of iteration 1. Restore" in shown.stderr


def test_what_comes_next_names_the_part_that_did_not_come_to_its_end(finished: Path, tmp_path: Path) -> None:
    run_id = trained(finished / "spec.yaml", finished / "results").folder.run_id
    shutil.copytree(finished / "results", tmp_path / "results")
    folder = RunFolder(tmp_path / "results" / "runs" / run_id)
    lines = (folder.path / "stages.jsonl").read_bytes().splitlines(keepends=True)
    shutil.rmtree(folder.path / "iterations")
    for part in ("i0", "t0", "t2"):
        one = RunFolder(folder.path.with_name(f"{run_id}-{part}"))
        one.write_manifest({**one.manifest(), "status": "interrupted"})
    expected = {
        1: f"iteration 0: its games ({run_id}-i0, interrupted)",
        2: f"iteration 0: its test ({run_id}-t0, interrupted)",
        3: "iteration 0: its datasets",
        len(lines) - 1: f"the last test ({run_id}-t2, interrupted)",
    }
    for kept, said in expected.items():
        (folder.path / "stages.jsonl").write_bytes(b"".join(lines[:kept]))
        assert progress(folder)["next"] == [said]


def test_a_point_of_a_sweep_that_waits_lets_the_others_go_on(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    test = {"scheme": "none"}
    training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": test}, sweep={"seed": [0, 1]})
    waits = nip_run("spec.yaml", "training.min_examples=1", cwd=tmp_path)
    assert waits.returncode == 1
    commands = [shlex.split(line)[5:] for line in waits.stderr.splitlines() if line.startswith("Go on with: ")]
    assert [words[2] for words in commands] == ["seed=0", "seed=1"]
    first = [word.replace("NAME", "mine") for word in commands[0]]
    done = nip_run(*first, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = nip_run("spec.yaml", "training.min_examples=1", "--json", cwd=tmp_path)
    assert again.returncode == 1
    finished, waiting = json.loads(again.stdout)
    assert (finished["was_finished"], waiting["status"]) == (True, "interrupted")
    assert (waiting["point"], waiting["waiting_for"]) == ({"seed": 1}, ["p"])


def test_what_is_for_the_other_kind_of_run_is_refused(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    with pytest.raises(UsageError, match="--set-model is for training runs"):
        trained(path, tmp_path / "results", "kind=benchmark", "training=null", set_model={"p": "x"})


# What check finds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": None}, "a training run needs a section `training`"),
        ({"kind": "benchmark"}, "this is for `kind: training`"),
        ({"training": {"trainers": {"p": None}}}, "by what is 'p' trained, which prover plays"),
        ({"training": {"trainers": {"q": {"backend": "dummy"}}}}, "no model group 'q'"),
        ({"training": {"trainers": {"p": {"backend": "openai"}}}}, "the group's provider is dummy"),
        ({"training": {"trainers": {"p": {"backend": "command"}}}}, "`backend: command` needs it"),
        (
            {"training": {"trainers": {"p": {"backend": "command", "command": ["true", "{datset}"]}}}},
            "no placeholder {datset}; did you mean 'dataset'?",
        ),
        (
            {"agents": {"prover": {"freeze": True}, "verifier": {"freeze": True}}, "training": {"trainers": {}}},
            "all agents are frozen",
        ),
        ({"models": {"p": {"provider": "openai", "model": "m"}}}, "no server has a model that nobody has trained"),
        ({"training": {"method": "malt"}}, "malt compares answers to one step: 2 or more"),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "expert_iteration plays single games"),
        (malt(training={"guess_replacement": {"proportion": 0.5}}), "malt replaces no guesses"),
        ({"training": {"datapoints_per_iteration": 13}}, "13 is more than the 12 datapoints"),
        ({"training": {"test": {"split": "train"}}}, "these datapoints are trained on, too"),
        ({"training": {"test": {"split": "tset"}}}, "training.test.split: no row has this split"),
        ({"agents": {"verifier": {"freeze": True, "model": "p"}}}, "would change the model that both play with"),
        (malt(rollouts={"most_calls": 100}), "grow exponentially with their rounds"),
        (
            {"training": {"selection": {"method": "weighted_sampling", "replacement": False, "sample_size_factor": 2}}},
            "more than there are cannot be drawn",
        ),
        ({"training": {"guess_replacement": {"annealing": "cosine"}}}, "cosine"),
    ],
)  # fmt: skip
def test_a_training_spec_that_cannot_be_played_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(training_spec(tmp_path, **changes))
    assert message in str(caught.value)


def test_check_says_how_many_calls_the_trees_may_take(tmp_path: Path) -> None:
    training_spec(tmp_path, **malt())
    said = nip_run("check", "spec.yaml", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "exponential in their 4 rounds, at most 360 calls" in said.stdout  # 12 x (2 + 4 + 8 + 16)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("scheme", ["none", "all", "last", "first_and_last"])
def test_check_knows_every_scheme_of_tests(tmp_path: Path, scheme: str) -> None:
    training_spec(tmp_path)
    said = nip_run("check", "spec.yaml", f"training.test.scheme={scheme}", "--json", cwd=tmp_path)
    tests = {"none": 0, "all": 3, "last": 1, "first_and_last": 2}[scheme]
    assert json.loads(said.stdout)[0]["rollouts"] == 2 * TRAIN + tests * TEST


def test_of_speakers_of_whom_one_is_drawn_one_is_counted(tmp_path: Path) -> None:
    protocol = {"use": "merlin_arthur", "max_message_rounds": None}
    path = training_spec(
        tmp_path,
        **malt(
            protocol=protocol,
            prompts="prompts/code_validation/merlin_arthur",
            agents={"prover": None, "prover0": {"model": "p"}, "prover1": {"model": "p"}},
        ),
    )
    spec = load_spec(path)
    assert tree_calls(spec.protocol, 2) == sum(2 ** (r + 1) for r in range(spec.protocol.max_message_rounds))


def test_a_dataset_that_is_gone_or_was_edited_is_built_again_before_it_is_trained_on(tmp_path: Path) -> None:
    fails = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    trainers = {"p": {"backend": "files"}, "v": {**fails, "format": "openai"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(RunError, match="training v failed"):
        trained(path, tmp_path / "results")
    (folder,) = (p.parent for p in (tmp_path / "results").glob("runs/*/stages.jsonl"))
    before = datasets_of(RunFolder(folder))
    (folder / "iterations" / "0" / "p.sft.jsonl").unlink()
    (folder / "iterations" / "0" / "v.sft.jsonl").write_text("tampered", "utf-8")
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", "training.trainers.v={backend: dummy}")
    assert datasets_of(RunFolder(folder)) == before
    assert "v.sft.jsonl was edited; it is built again" in (folder / "run.log").read_text("utf-8")


def test_a_dataset_that_is_edited_by_who_trains_by_hand_is_theirs_and_is_said(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(Waiting):
        trained(path, tmp_path / "results", run_id="mine")
    dataset = tmp_path / "results" / "runs" / "mine" / "iterations" / "0" / "p.sft.jsonl"
    chosen = dataset.read_bytes().splitlines(keepends=True)[:2]
    dataset.write_bytes(b"".join(chosen))
    done = trained(path, tmp_path / "results", run_id="mine", set_model={"p": "mine-1"})
    assert dataset.read_bytes() == b"".join(chosen)
    (row,) = done.metrics["iterations"]
    assert (row["outcomes"]["p"]["edited"], row["outcomes"]["p"]["examples"]) == (True, 2)
    assert "p.sft.jsonl was edited after it was built" in row["outcomes"]["p"]["notes"][0]
    assert row["models"]["p"]["lineage"][0]["dataset_sha256"] == file_hash(dataset)
    assert "edited" not in row["outcomes"]["v"]


def test_a_model_keeps_the_dataset_that_it_was_trained_on_though_the_format_changes(tmp_path: Path) -> None:
    fails = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    trainers = {"p": {"backend": "dummy"}, "v": fails}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(RunError, match="training v failed"):
        trained(path, tmp_path / "results", run_id="mine")
    dataset = tmp_path / "results" / "runs" / "mine" / "iterations" / "0" / "p.sft.jsonl"
    before = file_hash(dataset)
    overrides = ("+training.trainers.p.format=trl", "training.trainers.v={backend: dummy}")
    done = trained(path, tmp_path / "results", *overrides, run_id="mine")
    (row,) = done.metrics["iterations"]
    assert row["models"]["p"]["lineage"][0]["dataset_sha256"] == before == file_hash(dataset)
    report = [record for record in stages_of(done.folder) if record["stage"] == "datasets"][-1]
    assert {group: one["format"] for group, one in report["groups"].items()} == {"p": "openai", "v": "openai"}


@pytest.mark.parametrize("from_scratch", [False, True])
def test_a_name_is_for_the_model_that_was_waited_for_and_for_no_other(tmp_path: Path, from_scratch: bool) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    changes = {"iterations": 2, "trainers": trainers, "from_scratch": from_scratch}
    path = training_spec(tmp_path, training=changes)
    for name in ("early", "first"):  # the first is given before anybody was asked, the second is taken
        with pytest.raises(Waiting):
            trained(path, tmp_path / "results", set_model={"p": name})
    for _ in range(2):  # the command of the iteration before, run again as it was
        with pytest.raises(Waiting, match="not the result"):
            trained(path, tmp_path / "results", set_model={"p": "first"})
    done = trained(path, tmp_path / "results", set_model={"p": "second"})
    assert [row["models"]["p"]["model"] for row in done.metrics["iterations"]] == ["first", "second"]


def test_a_name_for_a_model_that_its_backend_names_itself_is_refused(tmp_path: Path) -> None:
    training_spec(tmp_path)
    for words, message in (
        (["--set-model", "p=x"], "its backend is dummy"),
        (["--set-model", "p=x", "--set-model", "p=y"], "given twice"),
        (["--set-model", "p=x", "+sweep.seed=[0,1]"], "is for one training run"),
    ):
        refused = nip_run("spec.yaml", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_a_training_run_can_be_played_in_a_notebook_where_a_loop_is_running_already(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})

    async def cell() -> str:
        return str(trained(path, tmp_path / "results").manifest["status"])

    assert asyncio.run(cell()) == "done"
