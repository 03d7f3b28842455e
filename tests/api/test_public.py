"""The public API of `runner`: names, examples in docstrings, specs from mappings, and results."""

from __future__ import annotations

import ast
import doctest
import inspect
import shutil
from collections.abc import Iterator, MutableMapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runner
from runner import NestedArrayDict, RunResult, SpecError, UsageError
from runner.results.table_columns import COLUMNS
from tests.api import user_script
from tests.compatibility.old import copy_old_files
from tests.support.paths import ROOT
from tests.support.processes import python
from tests.support.specs import spec_file

FUNCTIONS = [name for name in runner.__all__ if inspect.isfunction(getattr(runner, name))]
EXAMPLES = {
    name: example
    for name in runner.__all__
    for example in doctest.DocTestFinder(recurse=False).find(getattr(runner, name), name, globs={})
    if example.examples
}


@pytest.fixture(scope="module")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the empty current folder of the tests that need it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with chdir(folder):
        yield folder


def test_import_runner_exposes_exactly_the_public_names() -> None:
    done = python("import runner; print(*dir(runner))")
    assert done.stdout.split() == sorted(runner.__all__)
    assert all(getattr(runner, name) is not None for name in runner.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Budget'"):
        _ = runner.Budget  # type: ignore[attr-defined]


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse((ROOT / "runner" / "__init__.py").read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(runner.__all__) <= imported
    assert (ROOT / "runner" / "py.typed").is_file()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_an_example(name: str) -> None:
    assert name in EXAMPLES


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_example_runs(name: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, attempted = doctest.DocTestRunner().run(EXAMPLES[name])
    assert attempted > 0
    assert failed == 0, capsys.readouterr().out
    assert {path.name for path in empty_folder.iterdir()} <= {"results"}


INTERNAL_NAMES = ("Budget", "OnProgress", "Results", "RunOptions", "RunFolder", "ReplayOf", "OwnTree", "PlaceOf")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_signatures_have_no_internal_types(name: str) -> None:
    function = getattr(runner, name)
    annotations = " ".join(map(str, function.__annotations__.values()))
    assert not [
        internal_name for internal_name in INTERNAL_NAMES if internal_name in annotations.replace("RunResult", "")
    ]


@pytest.mark.full
def test_user_script_runs_and_uses_every_public_name(tmp_path: Path, empty_folder: Path) -> None:
    tree = ast.parse(Path(user_script.__file__).read_text("utf-8"))
    used = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(runner.__all__) - used == {"__version__"}
    user_script.main(tmp_path)


def test_a_printed_spec_is_short_and_shows_no_labels_or_prompts() -> None:
    spec = runner.load_spec("specs/quickstart.yaml")
    assert repr(spec) == "<Spec 'quickstart': nip on 96 datapoints>"


# A spec from a mapping


def test_invalid_mapping_is_refused_like_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        runner.load_spec({"extends": "quickstart.yaml", "dataset": {"splitt": "x"}, "seed": object()})
    assert "seed: expected a text, number, list or mapping, not object" in str(refused.value)
    with pytest.raises(SpecError) as refused:
        runner.load_spec({"extends": "quickstart.yaml", "dataset": {"splitt": "x"}}, {"seeed": 1})
    assert [str(problem) for problem in refused.value.problems] == [
        "override 'seeed':1:1: seeed: unknown key; did you mean 'seed'?",
        "spec:1:1: dataset.splitt: unknown key; did you mean 'split'?",
    ]


def test_equal_mapping_and_spec_file_give_the_same_run(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    assert runner.check({"extends": str(path)}).run_id == runner.check(path).run_id
    assert runner.load_spec(path, {"seed": 3}).experiment == runner.load_spec(path, ["seed=3"]).experiment
    with pytest.raises(SpecError, match=r"\$\{name\}"):
        runner.load_spec(path, {"dataset.path": "${name}"})  # not interpolated: there is no such file


def test_numpy_and_path_values_are_converted_in_specs(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    expected = runner.load_spec(path, {"seed": 3, "cache": "c", "rollouts.per_datapoint": 2})
    from_values = runner.load_spec(
        {"extends": path, "seed": np.int64(3)}, {"cache": Path("c"), "rollouts.per_datapoint": np.float32(2)}
    )
    assert from_values.experiment == expected.experiment
    assert runner.load_spec(path, "seed=3").experiment.seed == 3


def test_unsupported_values_are_refused_by_key_and_type(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    ring: dict[str, object] = {}
    ring["stop"] = ring
    invalid = {"seed": {1}, "models": {"offline": {"stop": [object()]}}, "agents": {3: 1}, "dataset": ring}
    messages = [
        "agents: a key must be text, not 3",
        "dataset.stop: the value contains itself; replace the inner one by a copy",
        "models.offline.stop.0: expected a text, number, list or mapping, not object",
        "seed: expected a text, number, list or mapping, not set",
    ]
    with pytest.raises(SpecError) as refused:
        runner.load_spec(path, invalid)
    assert [str(problem).partition(":1:1: ")[2] for problem in refused.value.problems] == messages
    invalid_keys: Any = {"extends": path, "seed": np.zeros(1), ("a", "b"): 1, "dataset": ring}
    with pytest.raises(SpecError) as refused:
        runner.load_spec(invalid_keys)
    assert [str(problem).partition(":1:1: ")[2] for problem in refused.value.problems] == [
        "a key must be text, not tuple",
        "dataset.stop: the value contains itself; replace the inner one by a copy",
        "seed: expected a text, number, list or mapping, not numpy.ndarray",
    ]
    with pytest.raises(SpecError, match="an override must be text"):
        runner.load_spec(path, [3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("x", "expected a whole number, not 'x'"),
        (-1, "-1 is too small; must be at least 1"),
        (1.5, "expected a whole number, not 1.5"),
        ({1}, "expected a text, number, list or mapping, not set"),
    ],
)
def test_protocol_parameters_are_checked_like_those_of_a_spec(value: object, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        runner.load_protocol("debate", {"max_message_rounds": value})
    (problem,) = refused.value.problems
    assert (problem.key, problem.message.startswith(reason)) == ("protocol.max_message_rounds", True)


def test_protocol_is_loaded_only_with_valid_parameters() -> None:
    assert runner.load_protocol("debate", {"max_message_rounds": np.int64(5)}).max_message_rounds == 5
    with pytest.raises(SpecError, match="9 is more than max_message_rounds"):
        runner.load_protocol("debate", {"min_message_rounds": 9})


# Results


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    spec = runner.load_spec("specs/quickstart.yaml", {"dataset.limit": 2})
    return runner.run(spec, tmp_path_factory.mktemp("asked") / "results")


def test_result_repr_is_one_line(result: RunResult) -> None:
    assert repr(result) == (f"<RunResult {result.run_id}: done, accuracy {result.accuracy!r}, 2 rollouts, $0.0000>")
    assert result.accuracy is not None
    assert f"(n={result.accuracy.n}, clusters={result.accuracy.clusters})" in repr(result.accuracy)


@pytest.mark.full
def test_result_tables_read_only_their_own_file_and_write_none(result: RunResult, tmp_path: Path) -> None:
    import duckdb

    rows = result.rollouts()
    assert len(rows.filter("rounds > 0").fetchall()) == len(rows.fetchall()) == 2
    for attack in ("SELECT * FROM read_text('/etc/hostname')", f"COPY t TO '{tmp_path / 'x'}'", "SET threads=8"):
        with pytest.raises(duckdb.Error):
            rows.query("t", attack).fetchall()  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="can only read"):
        runner.query(f"COPY runs TO '{tmp_path / 'x'}'", result.path.parents[1])
    with pytest.raises(UsageError, match="disabled"):
        runner.query("SELECT * FROM read_text('/etc/hostname')", result.path.parents[1])


def test_transcript_has_the_delivered_messages(result: RunResult) -> None:
    ((rollout_id, point),) = result.rollouts().select("rollout_id, datapoint_id").limit(1).fetchall()
    transcript = result.transcript(rollout_id[:8])
    assert transcript == result.transcript(point)
    rows = result.messages().filter(f"rollout_id = '{rollout_id}' AND content <> ''").fetchall()
    assert {(m.round, m.channel, m.agent, m.text) for m in transcript.messages} == {row[2:6] for row in rows}
    assert f"[round 0] {transcript.messages[0].agent} in {transcript.messages[0].channel}:\n  " in str(transcript)
    with pytest.raises(UsageError, match="the first one is"):
        result.transcript("no such rollout")


@pytest.mark.full
def test_hook_that_raises_ends_the_run_and_the_same_call_resumes_it(tmp_path: Path) -> None:
    spec = runner.load_spec(spec_file(tmp_path, size=2))

    def fail(_: object) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough") as raised:
        runner.run(spec, tmp_path / "results", on_rollout=fail)
    assert raised.value.__context__ is None  # the traceback has no exception of nip-run above it
    unfinished = runner.open_run(runner.check(spec).run_id, tmp_path / "results")
    assert (unfinished.status, unfinished.accuracy, unfinished.metrics) == ("failed", None, {})
    with pytest.raises(runner.RunError, match="finish the run with nip-run"):
        unfinished.rollouts()
    rollout_ids: list[str] = []
    runner.run(spec, tmp_path / "results", on_rollout=lambda rollout: rollout_ids.append(rollout.rollout_id))
    assert rollout_ids == [job.rollout_id for job in runner.Plan(spec).jobs()]
    runner.run(spec, tmp_path / "results", on_rollout=fail, on_progress=fail)  # the run is finished: no hook is called


def test_progress_of_a_run_can_be_collected(tmp_path: Path) -> None:
    history: list[runner.Progress] = []
    result = runner.run(runner.load_spec(spec_file(tmp_path, size=2)), tmp_path / "results", on_progress=history.append)
    assert {progress.jobs for progress in history} == {0, 1, 2}
    calls = [progress.calls for progress in history]
    assert calls == sorted(calls)
    assert (calls[0], calls[-1]) == (1, result.manifest.completions)
    assert (history[0].outcomes, history[-1].outcomes) == ({}, {"decided": 2})


def test_default_results_folder_is_that_of_the_command_line(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIP_RUN_RESULTS", str(result.path.parents[1]))
    assert runner.open_run(result.run_id).path == result.path
    assert runner.query("SELECT run_id FROM leaderboard").fetchall() == [(result.run_id,)]
    assert runner.run(runner.load_spec("specs/quickstart.yaml", {"dataset.limit": 2})).path == result.path
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NIP_RUN_RESULTS", str(file))
    with pytest.raises(UsageError, match=r"\(from NIP_RUN_RESULTS\) as a folder: not a folder"):
        runner.open_run("x")


@pytest.mark.full
def test_a_replay_of_a_copied_folder_is_a_replay_of_the_run(result: RunResult, tmp_path: Path) -> None:
    copy = shutil.copytree(result.path, tmp_path / "results" / "runs" / "copied")
    spec = runner.load_spec("specs/quickstart.yaml", {"dataset.limit": 2})
    replayed = runner.run(spec, tmp_path / "results", replay=copy)
    assert replayed.manifest.replay_of == (result.run_id, None)
    assert runner.run(runner.load_spec(replayed.path), tmp_path / "results").was_finished


def test_incompatible_options_are_refused(tmp_path: Path) -> None:
    spec, results = runner.load_spec(spec_file(tmp_path, size=2)), tmp_path / "results"
    with pytest.raises(UsageError, match="until_round needs replay"):
        runner.run(spec, results, until_round=2)
    with pytest.raises(UsageError, match=r"'X:Y': write VAR=HOST.*in Python: allow_keys=\['OPENAI_API_KEY=api"):
        runner.run(spec, results, allow_keys="X:Y")
    with pytest.raises(UsageError, match=r"in Python: set_model"):
        runner.run(spec, results, set_model={"m": "mine"}, allow_keys="X=Y")
    assert not results.exists()


def test_runs_of_0_1_0_can_be_opened(tmp_path: Path) -> None:
    results = copy_old_files(tmp_path) / "results"
    finished = runner.open_run("finished", results)
    assert finished.accuracy is not None
    assert len(finished.rollouts().fetchall()) == finished.accuracy.n
    assert finished.completions().select("reasoning").distinct().fetchall() == [(None,)]
    assert finished.messages().columns == list(COLUMNS["messages"])

    training = runner.open_run("malt", results)
    assert training.accuracy is None
    assert [part.run_id.removeprefix(training.run_id) for part in training.parts()] == ["-i0", "-t0", "-t1"]
    with pytest.raises(UsageError, match=r"which parts\(\) returns"):
        training.rollouts()


# Nested arrays


def test_a_nested_array_dict_is_a_mutable_mapping() -> None:
    data = NestedArrayDict({"a": np.zeros(2), "b": {"c": np.ones((2, 3)), "d": ["x", None]}}, (2,))
    assert isinstance(data, MutableMapping)
    assert dict(data).keys() == {"a", "b"}
    copy = NestedArrayDict(dict(data), (2,))
    assert copy == data
    assert data.get(("b", "none"), 5) == 5
    assert data.pop(("b", "c")).shape == (2, 3)
    assert ("b", "c") not in data
    assert copy != data
    assert data.setdefault("e", [1, 2]).tolist() == [1, 2]
    del data["a"]
    assert list(data) == ["b", "e"]
    assert all(key not in data for key in (None, 0, slice(1), ..., (), ("b", 0), np.ones(2, bool), ("e", "x")))
    assert data.get(("e", "x"), 5) == data.pop(("e", "x"), 5) == 5
    for key in (3, None, (), ("b", 0)):
        with pytest.raises(TypeError, match="a key must be a string"):
            data[key] = [1, 2]  # type: ignore[index]
    assert data[0:1].batch_size == (1,)
    assert data[np.array([1, 0])]["e"].tolist() == [2, 1]
    with pytest.raises(KeyError):
        del data["b", "nothing"]


def test_old_agents_module_works_with_a_deprecation_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"runner\.rollouts\.agents"):
        from runner.agents import AgentRuntime
    assert AgentRuntime is runner.AgentRuntime
