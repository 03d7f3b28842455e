"""`from_run` takes a model of another run, and `training.rerun_tests` tests all of them again; of 0.1.0's runs, too."""

from __future__ import annotations

import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.api import load_spec, load_specs, query, run
from runner.base.errors import SpecError, UsageError
from runner.cli.main import main
from runner.models.settings import ModelSettings
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.spec.loader import load_saved
from runner.training.stage_log import read_stages
from runner.training.stages import ModelSwitch
from tests.compatibility.old import RUNS, opened
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

MALT = RUNS["malt"]
TRAINED = "dummy:dummy-f7fd9d8b"
"""What the group `v` of 0.1.0's run became."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The results of 0.1.0, which hold a training run of one iteration."""
    return opened(tmp_path) / "results"


def taking(folder: Path, results: Path, said: str, **settings: Any) -> ModelSettings:
    """The model group of a small spec that takes its model from a run."""
    path = spec_file(folder, models={"m": {"provider": None, "from_run": said, "from_group": "v", **settings}})
    return load_spec(path, results=results).experiment.models["m"]


def refused(folder: Path, results: Path, said: str, **settings: Any) -> str:
    with pytest.raises(SpecError) as caught:
        taking(folder, results, said, **settings)
    (problem,) = caught.value.problems
    assert problem.key.startswith("models.m.from_")
    return problem.message


def test_a_model_of_a_run_of_0_1_0_is_taken_by_its_iteration(old: Path, tmp_path: Path) -> None:
    before, after = taking(tmp_path, old, f"{MALT}@i0"), taking(tmp_path, old, f"{MALT}@i1")
    assert (before.model, before.lineage) == (None, ())
    assert (after.model, after.base_model, after.provider) == (TRAINED, "dummy", "dummy")
    assert [(step.run_id, step.iteration, step.method) for step in after.lineage] == [(MALT, 0, "dpo")]
    assert after == taking(tmp_path, old, f"{MALT}@last") == taking(tmp_path, old, "malt")
    assert after == taking(tmp_path, old, str(old / "runs" / MALT))
    assert (after.from_run, after.from_group) == (None, None)


@pytest.mark.full
def test_what_a_run_was_played_with_is_saved_and_needs_the_other_run_no_more(old: Path, tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, models={"m": {"from_run": "malt", "from_group": "v", "temperature": 0.5}})
    result = run(path, old)
    shutil.rmtree(old / "runs" / MALT)
    saved = load_saved(result.folder.spec).experiment.models["m"]
    assert (saved.model, saved.temperature, saved.lineage[0].run_id) == (TRAINED, 0.5, MALT)
    named = {"m": {"model": TRAINED, "base_model": "dummy", "temperature": 0.5}}
    assert Plan(load_spec(spec_file(tmp_path, size=2, models=named))).run_id == result.run_id


def test_where_a_model_is_served_comes_with_it_unless_it_is_said(old: Path, tmp_path: Path) -> None:
    file = old / "runs" / MALT / "spec.yaml"
    there = yaml.safe_load(file.read_text())
    there["models"]["v"] |= {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "THEIRS"}
    file.write_text(yaml.safe_dump(there))
    taken = taking(tmp_path, old, "malt")
    assert (taken.provider, taken.base_url, taken.api_key_env) == ("openai", "http://127.0.0.1:9/v1", "THEIRS")
    assert taken.chat_format == "openai"  # 0.1.0 knew no other, whatever the address
    assert taking(tmp_path, old, "malt", base_url="http://127.0.0.1:8/v1").base_url == "http://127.0.0.1:8/v1"
    assert taking(tmp_path, old, "malt", provider="dummy").base_url is None


def test_mistakes_name_what_is_there(old: Path, tmp_path: Path) -> None:
    there = f"run {MALT} has iterations i0..i1 of groups p, v"
    assert refused(tmp_path, old, f"{MALT}@i2") == f"no iteration 2; {there}; choose one of these"
    assert refused(tmp_path, old, "malt@last", from_group="verifier") == f"no model group 'verifier'; {there}"
    assert "no run 'mald'" in refused(tmp_path, old, "mald")
    named = "sweep-3942dc58ea, sweep-838e83c049"
    assert f"is the start of 2 run ids; write more of one: {named}" in refused(tmp_path, old, "sweep")
    assert "is not a model of a run; write RUN, RUN@i3" in refused(tmp_path, old, "malt@3")
    assert "is not finished" in refused(tmp_path, old, "learning@last")
    assert "is a benchmark" in refused(tmp_path, old, f"{RUNS['finished']}@i1", from_group="m")
    assert "both set the model; remove one" in refused(tmp_path, old, "malt", model="x")
    assert "uses provider dummy, not openai" in refused(tmp_path, old, "malt", provider="openai")
    with pytest.raises(SpecError, match="needs from_run"):
        load_spec(spec_file(tmp_path, models={"m": {"from_group": "v"}}))


def test_a_base_names_a_model_and_a_sweep_takes_each_iterations(old: Path, tmp_path: Path) -> None:
    spec_file(tmp_path, models={"m": {"model": "of-the-base"}})
    swept = {"sweep": {"models.m.from_run": ["malt@i0", "malt@i1"]}, "models": {"m": {"from_group": "v"}}}
    path = tmp_path / "above.yaml"
    path.write_text(yaml.safe_dump({"extends": "spec.yaml", **swept}))
    points = load_specs(path, results=old)
    assert [spec.experiment.models["m"].model for spec in points] == [None, TRAINED]
    with pytest.raises(SpecError, match="both set the model; remove one"):
        load_specs(path, ["models.m.model=mine"], results=old)


AGAIN = {
    "name": "again",
    "training.rerun_tests.run": "malt",
    "training.test.limit": 4,
    "training.test.per_datapoint": 3,
}


@pytest.mark.full
def test_the_models_of_a_run_of_0_1_0_are_tested_again(old: Path, tmp_path: Path) -> None:
    spec = load_spec(tmp_path / "specs" / "malt.yaml", AGAIN, results=old)
    again = run(spec, old)
    curve = again.metrics["tests"]
    assert [(row["iteration"], row["run_id"]) for row in curve] == [(n, f"{again.run_id}-t{n}") for n in (0, 1)]
    assert {row["accuracy"]["n"] for row in curve} == {12}
    asked = "SELECT iteration, parent_run_id, kind FROM runs WHERE parent_run_id = $run ORDER BY 1"
    assert query(asked, old, run=again.run_id).fetchall() == [(n, again.run_id, "benchmark") for n in (0, 1)]
    models = "SELECT model FROM agents WHERE run_id = $run || '-t1' AND agent = 'verifier'"
    assert query(models, old, run=again.run_id).fetchall() == [(TRAINED,)]
    shutil.rmtree(old / "runs" / MALT)  # what it came to is saved with it
    assert run(again.folder.path, old).was_finished
    assert taking(tmp_path, old, "again@last").model == TRAINED
    out = StringIO()
    with redirect_stdout(out):
        assert main(["show", again.run_id, "--results", str(old)]) == 0
    assert "in the end" in out.getvalue()
    assert "trained" not in out.getvalue()


def test_what_cannot_be_tested_again_is_refused(old: Path, tmp_path: Path) -> None:
    def message(**changes: Any) -> str:
        with pytest.raises(SpecError) as caught:
            load_spec(tmp_path / "specs" / "malt.yaml", AGAIN | changes, results=old)
        return caught.value.problems[0].message

    assert "has not finished an iteration" in message(**{"training.rerun_tests.run": "learning"})
    assert "no run 'mald'" in message(**{"training.rerun_tests.run": "mald"})
    spec = load_spec(tmp_path / "specs" / "malt.yaml", AGAIN, results=old)
    with pytest.raises(UsageError, match="a run with rerun_tests trains no models"):
        run(spec, old, set_model={"v": "mine"})


@pytest.mark.full
def test_tests_of_all_iterations_again_give_the_same_verdicts(tmp_path: Path) -> None:
    results = tmp_path / "results"
    path = training_spec(tmp_path, training={"iterations": 3, "test": {"scheme": "all"}})
    first = run_training(path, results)
    again = run(load_spec(path, {"name": "again", "training.rerun_tests.run": "learn"}, results), results)
    assert again.metrics["tests"][0]["iteration"] == 0
    assert [row["accuracy"] for row in again.metrics["tests"]] == [row["accuracy"] for row in first.metrics["tests"]]
    assert again.manifest.training == first.manifest.training
    switched = read_stages(again.folder.path, again.folder.identity()).find_all(ModelSwitch)
    assert [record.models for record in switched] == [
        record.models for record in read_stages(first.folder.path, first.folder.identity()).find_all(ModelSwitch)
    ]
    parts = Results(results).parts_of(again.run_id)
    assert [part.run_id.rpartition("-")[2] for part in parts] == ["t0", "t1", "t2", "t3"]
