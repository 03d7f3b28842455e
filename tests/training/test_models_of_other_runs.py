"""Models of other runs, including runs of 0.1.0: `from_run` loads one, `training.rerun_tests` tests them again."""

from __future__ import annotations

import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner import load_spec, load_specs, query, run
from runner.base.errors import SpecError, UsageError
from runner.cli.main import main
from runner.models.settings import ModelSettings
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.spec.loader import load_saved
from runner.training.stage_log import read_stages
from runner.training.stages import ModelSwitch
from tests.compatibility.old import RUNS, copy_old_files
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

MALT = RUNS["malt"]
TRAINED = "dummy:dummy-f7fd9d8b"
"""Model of group `v` after the training run of 0.1.0."""


@pytest.fixture
def old_results(tmp_path: Path) -> Path:
    """The results folder of 0.1.0, with a training run of one iteration."""
    return copy_old_files(tmp_path) / "results"


def load_group(folder: Path, results: Path, source_run: str, **settings: Any) -> ModelSettings:
    """Load a small spec that takes its model from a run; return its model group."""
    path = spec_file(folder, models={"m": {"provider": None, "from_run": source_run, "from_group": "v", **settings}})
    return load_spec(path, results=results).experiment.models["m"]


def load_error(folder: Path, results: Path, source_run: str, **settings: Any) -> str:
    with pytest.raises(SpecError) as caught:
        load_group(folder, results, source_run, **settings)
    (problem,) = caught.value.problems
    assert problem.key.startswith("models.m.from_")
    return problem.message


def test_model_of_a_0_1_0_run_is_loaded_by_its_iteration(old_results: Path, tmp_path: Path) -> None:
    before, after = load_group(tmp_path, old_results, f"{MALT}@i0"), load_group(tmp_path, old_results, f"{MALT}@i1")
    assert (before.model, before.lineage) == (None, ())
    assert (after.model, after.base_model, after.provider) == (TRAINED, "dummy", "dummy")
    assert [(step.run_id, step.iteration, step.method) for step in after.lineage] == [(MALT, 0, "dpo")]
    assert after == load_group(tmp_path, old_results, f"{MALT}@last") == load_group(tmp_path, old_results, "malt")
    assert after == load_group(tmp_path, old_results, str(old_results / "runs" / MALT))
    assert (after.from_run, after.from_group) == (None, None)


@pytest.mark.full
def test_run_saves_the_model_settings_and_no_longer_needs_the_source_run(old_results: Path, tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, models={"m": {"from_run": "malt", "from_group": "v", "temperature": 0.5}})
    result = run(path, old_results)
    shutil.rmtree(old_results / "runs" / MALT)
    saved = load_saved(result.folder.spec).experiment.models["m"]
    assert (saved.model, saved.temperature, saved.lineage[0].run_id) == (TRAINED, 0.5, MALT)
    direct_models = {"m": {"model": TRAINED, "base_model": "dummy", "temperature": 0.5}}
    assert Plan(load_spec(spec_file(tmp_path, size=2, models=direct_models))).run_id == result.run_id


def test_server_settings_come_with_the_model_unless_the_spec_sets_them(old_results: Path, tmp_path: Path) -> None:
    file = old_results / "runs" / MALT / "spec.yaml"
    saved_spec = yaml.safe_load(file.read_text())
    saved_spec["models"]["v"] |= {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "THEIRS"}
    file.write_text(yaml.safe_dump(saved_spec))
    group = load_group(tmp_path, old_results, "malt")
    assert (group.provider, group.base_url, group.api_key_env) == ("openai", "http://127.0.0.1:9/v1", "THEIRS")
    assert group.chat_format == "openai"  # the only chat format of 0.1.0
    assert (
        load_group(tmp_path, old_results, "malt", base_url="http://127.0.0.1:8/v1").base_url == "http://127.0.0.1:8/v1"
    )
    assert load_group(tmp_path, old_results, "malt", provider="dummy").base_url is None


def test_errors_list_the_available_iterations_groups_and_runs(old_results: Path, tmp_path: Path) -> None:
    available = f"run {MALT} has iterations i0..i1 of groups p, v"
    assert load_error(tmp_path, old_results, f"{MALT}@i2") == f"no iteration 2; {available}; choose one of these"
    assert (
        load_error(tmp_path, old_results, "malt@last", from_group="verifier")
        == f"no model group 'verifier'; {available}"
    )
    assert "no run 'mald'" in load_error(tmp_path, old_results, "mald")
    run_ids = "sweep-3942dc58ea, sweep-838e83c049"
    assert f"is the start of 2 run ids; write more of one: {run_ids}" in load_error(tmp_path, old_results, "sweep")
    assert "is not a model of a run; write RUN, RUN@i3" in load_error(tmp_path, old_results, "malt@3")
    assert "is not finished" in load_error(tmp_path, old_results, "learning@last")
    assert "is a benchmark" in load_error(tmp_path, old_results, f"{RUNS['finished']}@i1", from_group="m")
    assert "both set the model; remove one" in load_error(tmp_path, old_results, "malt", model="x")
    assert "uses provider dummy, not openai" in load_error(tmp_path, old_results, "malt", provider="openai")
    with pytest.raises(SpecError, match="needs from_run"):
        load_spec(spec_file(tmp_path, models={"m": {"from_group": "v"}}))


def test_sweep_over_from_run_replaces_the_model_of_a_base_spec(old_results: Path, tmp_path: Path) -> None:
    spec_file(tmp_path, models={"m": {"model": "of-the-base"}})
    changes = {"sweep": {"models.m.from_run": ["malt@i0", "malt@i1"]}, "models": {"m": {"from_group": "v"}}}
    path = tmp_path / "above.yaml"
    path.write_text(yaml.safe_dump({"extends": "spec.yaml", **changes}))
    points = load_specs(path, results=old_results)
    assert [spec.experiment.models["m"].model for spec in points] == [None, TRAINED]
    with pytest.raises(SpecError, match="both set the model; remove one"):
        load_specs(path, ["models.m.model=mine"], results=old_results)


RERUN_CHANGES = {
    "name": "again",
    "training.rerun_tests.run": "malt",
    "training.test.limit": 4,
    "training.test.per_datapoint": 3,
}


@pytest.mark.full
def test_models_of_a_0_1_0_run_are_tested_again(old_results: Path, tmp_path: Path) -> None:
    spec = load_spec(tmp_path / "specs" / "malt.yaml", RERUN_CHANGES, results=old_results)
    rerun = run(spec, old_results)
    curve = rerun.metrics["tests"]
    assert [(row["iteration"], row["run_id"]) for row in curve] == [(n, f"{rerun.run_id}-t{n}") for n in (0, 1)]
    assert {row["accuracy"]["n"] for row in curve} == {12}
    parts_query = "SELECT iteration, parent_run_id, kind FROM runs WHERE parent_run_id = $run ORDER BY 1"
    assert query(parts_query, old_results, run=rerun.run_id).fetchall() == [
        (n, rerun.run_id, "benchmark") for n in (0, 1)
    ]
    models_query = "SELECT model FROM agents WHERE run_id = $run || '-t1' AND agent = 'verifier'"
    assert query(models_query, old_results, run=rerun.run_id).fetchall() == [(TRAINED,)]
    shutil.rmtree(old_results / "runs" / MALT)  # the run has saved the model settings
    assert run(rerun.folder.path, old_results).was_finished
    assert load_group(tmp_path, old_results, "again@last").model == TRAINED
    output = StringIO()
    with redirect_stdout(output):
        assert main(["show", rerun.run_id, "--results", str(old_results)]) == 0
    assert "in the end" in output.getvalue()
    assert "trained" not in output.getvalue()


def test_rerun_tests_rejects_unfinished_and_unknown_runs(old_results: Path, tmp_path: Path) -> None:
    def message(**changes: Any) -> str:
        with pytest.raises(SpecError) as caught:
            load_spec(tmp_path / "specs" / "malt.yaml", RERUN_CHANGES | changes, results=old_results)
        return caught.value.problems[0].message

    assert "has not finished an iteration" in message(**{"training.rerun_tests.run": "learning"})
    assert "no run 'mald'" in message(**{"training.rerun_tests.run": "mald"})
    spec = load_spec(tmp_path / "specs" / "malt.yaml", RERUN_CHANGES, results=old_results)
    with pytest.raises(UsageError, match="a run with rerun_tests trains no models"):
        run(spec, old_results, set_model={"v": "mine"})


@pytest.mark.full
def test_repeated_tests_of_all_iterations_give_the_same_verdicts(tmp_path: Path) -> None:
    results = tmp_path / "results"
    path = training_spec(tmp_path, training={"iterations": 3, "test": {"scheme": "all"}})
    first = run_training(path, results)
    rerun = run(load_spec(path, {"name": "again", "training.rerun_tests.run": "learn"}, results), results)
    assert rerun.metrics["tests"][0]["iteration"] == 0
    assert [row["accuracy"] for row in rerun.metrics["tests"]] == [row["accuracy"] for row in first.metrics["tests"]]
    assert rerun.manifest.training == first.manifest.training
    switches = read_stages(rerun.folder.path, rerun.folder.identity()).find_all(ModelSwitch)
    assert [record.models for record in switches] == [
        record.models for record in read_stages(first.folder.path, first.folder.identity()).find_all(ModelSwitch)
    ]
    parts = Results(results).parts_of(rerun.run_id)
    assert [part.run_id.rpartition("-")[2] for part in parts] == ["t0", "t1", "t2", "t3"]
