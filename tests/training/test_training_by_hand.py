"""Models trained by hand: messages and state of a run that waits for them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError, UsageError, Waiting
from runner.base.hashing import file_hash
from runner.results.leaderboard.results_folder import Results
from runner.runs.session.run import RunOptions
from runner.spec.loader import load_spec
from runner.training.plan import TrainingPlan
from runner.training.run import train
from tests.support.processes import nip_run_here
from tests.support.training import TRAIN, run_training, training_spec


@pytest.mark.full
def test_files_backend_waits_for_the_model_and_resumes_with_it(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    waiting_run = nip_run_here("spec.yaml", cwd=tmp_path)
    assert waiting_run.returncode == 1
    assert waiting_run.stderr.splitlines()[-1] == "Resume with: nip-run run spec.yaml --set-model p=NAME"
    assert "Traceback" not in waiting_run.stderr
    wrong_group = nip_run_here("spec.yaml", "--set-model", "q=mine", cwd=tmp_path)
    assert wrong_group.returncode == 2
    assert "trains no model group 'q'" in wrong_group.stderr
    done = nip_run_here("spec.yaml", "--set-model", "p=mine-1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["iterations"][0]["models"]["p"]["model"] == "mine-1"


def write_three_group_spec(folder: Path, p: dict[str, Any], q: dict[str, Any], **training: Any) -> Path:
    """Write a spec with two provers and a verifier in separate groups; the dummy verifier trains at once."""
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


@pytest.mark.full
def test_failed_job_is_reported_next_to_a_trained_and_a_waiting_one(tmp_path: Path) -> None:
    failing_trainer = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    path = write_three_group_spec(tmp_path, failing_trainer, {"backend": "files"})
    with pytest.raises(RunError, match="training p failed"):
        run_training(path, tmp_path / "results", run_id="mine")
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", "training.trainers.p={backend: dummy}", run_id="mine")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tuned", {"iterations": 2}, r"iteration 0: training v failed:[^\n]* tuned is a model of another group"),
        (
            "tuned-{group}",
            {"iterations": 2, "from_scratch": True},
            r"iteration 1: training p failed:[^\n]* tuned-p is an earlier model of p",
        ),
    ],
)
def test_trainer_that_reuses_a_models_name_fails_instead_of_mixing_up_two_models(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    """With the same name, the server has only one of the two models, and each test would measure this one."""
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    trainers = {
        group: {
            "backend": "command", "command": [sys.executable, "-c", code, "{model_file}", name, "{dataset}"],
            "poll_seconds": 0.05,
        }
        for group in ("p", "v")
    }  # fmt: skip
    selection = {"reward_threshold": -1}
    path = training_spec(tmp_path, training={"trainers": trainers, "selection": selection, **changes})
    for _ in range(2):  # the next command starts a new job, which fails, too
        with pytest.raises(RunError, match=message):
            run_training(path, tmp_path / "results", run_id="mine")


def test_unstartable_trainer_is_an_error_before_any_game(tmp_path: Path) -> None:
    missing_trainer = {"backend": "command", "command": ["no-such-trainer", "{dataset}", "{model_file}"]}
    path = training_spec(tmp_path, training={"trainers": {"p": missing_trainer}})
    with pytest.raises(RunError, match=r"training\.trainers\.p\.command: no program 'no-such-trainer'"):
        run_training(path, tmp_path / "results", run_id="mine")
    assert [run.name for run in (tmp_path / "results" / "runs").iterdir()] == ["mine"]


@pytest.mark.full
def test_only_running_jobs_set_the_poll_interval(tmp_path: Path) -> None:
    go_file = tmp_path / "go"
    code = (
        f"import os, sys, time\nwhile not os.path.exists({str(go_file)!r}): time.sleep(0.01)\n"
        "open(sys.argv[2], 'w').write('better')"
    )
    command = [sys.executable, "-c", code, "{dataset}", "{model_file}"]
    trainers = {
        "p": {"backend": "command", "command": command, "poll_seconds": 0.05},
        "v": {"backend": "dummy", "poll_seconds": 0.01},
    }
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": {"scheme": "none"}})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        go_file.touch()

    train(TrainingPlan(load_spec(path)), Results(tmp_path / "results"), "waits", RunOptions(), sleep=sleep)
    assert set(waits) == {0.05}


@pytest.mark.full
def test_waiting_run_is_interrupted_and_repeats_no_games(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    for _ in range(2):
        with pytest.raises(Waiting):
            run_training(path, tmp_path / "results")
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 2
    _, rows = Results(tmp_path / "results").board.query("SELECT status FROM runs WHERE parent_run_id IS NULL")
    assert rows == [("interrupted",)]


@pytest.mark.full
def test_show_reports_the_progress_of_a_run_and_its_missing_model(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"trainers": trainers, "test": {"scheme": "all", "limit": 2}})
    for names in ({}, {"p": "first"}):
        with pytest.raises(Waiting):
            run_training(path, tmp_path / "results", run_id="mine", set_model=names)
    show = nip_run_here("show", "mine", cwd=tmp_path)
    assert show.returncode == 0, show.stderr
    text = " ".join(show.stdout.split())
    assert f"rollouts {2 * TRAIN + 2 * 2} completions" in text
    assert "before iteration 1" in text
    assert "first" in text
    assert "in the end" not in text
    assert f"{Path('results/runs/mine/iterations/1/p.job/README.txt')}); continue with --set-model p=NAME" in text
    assert "next: iteration 1: v: trained: dummy:dummy-" in text
    for part in ("i1", "t1"):
        (tmp_path / "results" / "runs" / f"mine-{part}" / "manifest.json").unlink()
    show = nip_run_here("show", "mine", cwd=tmp_path)
    assert show.returncode == 1
    assert "has the test of iteration 1 of training run mine. Restore" in show.stderr


@pytest.mark.full
def test_waiting_point_of_a_sweep_does_not_block_the_others(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    test = {"scheme": "none"}
    training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": test}, sweep={"seed": [0, 1]})
    waiting_run = nip_run_here("spec.yaml", "training.min_examples=1", cwd=tmp_path)
    assert waiting_run.returncode == 1
    commands = [shlex.split(line)[4:] for line in waiting_run.stderr.splitlines() if line.startswith("Resume with: ")]
    assert [arguments[2] for arguments in commands] == ["seed=0", "seed=1"]
    first_command = [argument.replace("NAME", "mine") for argument in commands[0]]
    done = nip_run_here(*first_command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rerun = nip_run_here("spec.yaml", "training.min_examples=1", "--json", cwd=tmp_path)
    assert rerun.returncode == 1
    finished, waiting = json.loads(rerun.stdout)
    assert (finished["was_finished"], waiting["status"]) == (True, "interrupted")
    assert (waiting["point"], waiting["waiting_for"]) == ({"seed": 1}, ["p"])


def test_set_model_is_rejected_for_benchmarks(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    with pytest.raises(UsageError, match="is only for training runs"):
        run_training(path, tmp_path / "results", "kind=benchmark", "training=null", set_model={"p": "x"})


@pytest.mark.full
def test_dataset_edited_by_hand_is_kept_and_reported(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", run_id="mine")
    dataset = tmp_path / "results" / "runs" / "mine" / "iterations" / "0" / "p.sft.jsonl"
    chosen = dataset.read_bytes().splitlines(keepends=True)[:2]
    dataset.write_bytes(b"".join(chosen))
    done = run_training(path, tmp_path / "results", run_id="mine", set_model={"p": "mine-1"})
    assert dataset.read_bytes() == b"".join(chosen)
    (row,) = done.metrics["iterations"]
    assert (row["outcomes"]["p"]["edited"], row["outcomes"]["p"]["examples"]) == (True, 2)
    assert "p.sft.jsonl was edited after it was built" in row["outcomes"]["p"]["notes"][0]
    assert row["models"]["p"]["lineage"][0]["dataset_sha256"] == file_hash(dataset)
    assert "edited" not in row["outcomes"]["v"]


@pytest.mark.full
@pytest.mark.parametrize("from_scratch", [False, pytest.param(True, marks=pytest.mark.full)])
def test_model_name_is_used_only_for_the_model_the_run_waits_for(tmp_path: Path, from_scratch: bool) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    changes = {"iterations": 2, "trainers": trainers, "from_scratch": from_scratch}
    path = training_spec(tmp_path, training=changes)
    # The run does not wait for a model yet when it gets the first name; it uses the second.
    for name in ("early", "first"):
        with pytest.raises(Waiting):
            run_training(path, tmp_path / "results", set_model={"p": name})
    for _ in range(2):  # repeats the command of the previous iteration
        with pytest.raises(Waiting, match=r"not the (newly )?trained model"):
            run_training(path, tmp_path / "results", set_model={"p": "first"})
    done = run_training(path, tmp_path / "results", set_model={"p": "second"})
    assert [row["models"]["p"]["model"] for row in done.metrics["iterations"]] == ["first", "second"]


def test_set_model_is_rejected_for_backends_that_name_their_models(tmp_path: Path) -> None:
    training_spec(tmp_path)
    for options, message in (
        (["--set-model", "p=x"], "the backend dummy sets"),
        (["--set-model", "p=x", "--set-model", "p=y"], "more than one model for group 'p'"),
        (["--set-model", "p=x", "+sweep.seed=[0,1]"], "works with one training run"),
    ):
        result = nip_run_here("spec.yaml", *options, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr
