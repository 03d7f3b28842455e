"""`nip-run rejudge` and its source run: edited inputs, missing templates, and a source that has grown."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from runner import SpecError, load_spec
from runner.cli.main import main
from runner.spec.warnings.catalog import warnings_of
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished run `first` of a dummy, to be copied."""
    folder = tmp_path_factory.mktemp("source")
    run_spec(spec_file(folder, size=4, fine_tune=None), folder / "results", run_id="first")
    return folder


def enter_copy(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy `source`, make the copy the current folder, and return its results folder."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return folder / "results"


JUDGE_OVERRIDES = ("+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge")


def rejudge_with_dummy(*arguments: str) -> tuple[int, str, str]:
    """Run `nip-run rejudge first` with a dummy judge; return the exit code, stdout and stderr."""
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = main(["rejudge", "first", *JUDGE_OVERRIDES, *arguments])
    return code, stdout.getvalue(), stderr.getvalue()


@pytest.mark.sample(1)
@pytest.mark.parametrize("edited", ["dataset", "prompts"])
def test_edited_inputs_of_the_source_are_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    run = enter_copy(source, tmp_path, monkeypatch) / "runs" / "first"
    if edited == "dataset":
        path = run / "inputs" / "dataset.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "label": 1 - row["label"]}) + "\n" for row in rows))
    else:
        (run / "inputs" / "prompts" / "prover.jinja").write_text("Say yes.")
    code, _, rejudge_stderr = rejudge_with_dummy()
    assert code != 0
    assert "has changed since its run started" in rejudge_stderr
    with redirect_stderr(StringIO()) as stderr:
        assert main(["show", "first", "p0"]) != 0
        assert edited != "dataset" or main(["compare", "first", "--assert", "accuracy >= 0.1"]) == 2
    assert "has changed since its run started" in stderr.getvalue()
    assert ("dataset.jsonl is not what was played" in stderr.getvalue()) == (edited == "dataset")


@pytest.mark.full
def test_rates_of_agents_that_were_never_called_are_empty(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(source, tmp_path, monkeypatch)
    with run_chat_server(text="What about the empty input?") as server:
        overrides = (
            f"models.judge.{key}={value}" for key, value in (("provider", "openai"), ("base_url", server.base_url))
        )
        code, stdout, stderr = rejudge_with_dummy(*overrides, "retry.invalid_response.attempts=3", "--json")
    assert code == 0, stderr
    (report,) = json.loads(stdout)
    metrics = json.loads((tmp_path / report["folder"] / "metrics.json").read_text())["metrics"]
    rates = {(row["agent"], row["metric"]): (row["value"], row["n"]) for row in metrics}
    assert rates["verifier", "calls_per_message"] == (3.0, 4)
    assert rates["verifier", "retries_per_round"] == (3.0, 4)
    for metric in ("calls_per_message", "retries_per_round", "token_limit_proportion"):
        assert rates["prover", metric] == (None, 0)
    assert "4 of 4 messages were left empty" in "".join(report["notes"])


def test_prompts_folder_without_a_judge_template_is_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_copy(source, tmp_path, monkeypatch)
    prompts = tmp_path / "pt"
    prompts.mkdir()
    (prompts / "verifer.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    code, _, stderr = rejudge_with_dummy("prompts=pt")
    assert code == 2
    assert "so the prompts of verifier would not change; did you mean 'verifer.jinja'?" in stderr
    assert "override 'prompts=pt'" in stderr
    run = {"rejudge": {"run": "firs"}, "name": "other", "prompts": str(prompts)}
    (prompts / "verifier.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    with pytest.raises(SpecError, match="no run 'firs_t'"):
        load_spec({"extends": "results/runs/first/spec.yaml", **run, "rejudge": {"run": "firs_t"}}, (), "results")
    by_id = load_spec({"extends": "results/runs/first/spec.yaml", **run}, (), "results")
    assert by_id.rejudged is not None
    assert by_id.rejudged.run_id == "first"
    expected_warning = f"verifier.last_round.jinja is missing in prompts {prompts}, and is taken from run first"
    assert [line for line in warnings_of(by_id) if "taken from" in line] == [expected_warning]


@pytest.mark.full
def test_repeated_rejudge_names_the_earlier_run_and_accepts_a_prefix_of_the_source(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = enter_copy(source, tmp_path, monkeypatch)
    (results / "runs" / "first").rename(results / "runs" / "any-1")
    manifest = results / "runs" / "any-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"first"', '"any-1"'))
    arguments = ["rejudge", "any", *JUDGE_OVERRIDES]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as stderr:
        assert main([*arguments, "-q", "--run-id", "any-1-judged"]) == 0
        assert main([*arguments, "--run-id", "any-1-judged"]) == 0
    assert "any-1 was already judged by any-1-judged; to judge it again, add --again" in stderr.getvalue()


def test_invalid_override_is_reported_from_another_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with redirect_stderr(StringIO()) as stderr:
        assert main(["rejudge", str(source / "results" / "runs" / "first"), "agents.verifier.model=nope"]) == 2
    assert "no model group 'nope'" in stderr.getvalue()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rollouts.per_datapoint=3", "has only 1 repeat"),
        ("training.iterations=2", "judging debates again trains nothing"),
        ("until.width=0.1", "set all of its keys: until={...}"),
    ],
)
def test_overrides_that_rejudge_cannot_apply_are_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, override: str, reason: str
) -> None:
    enter_copy(source, tmp_path, monkeypatch)
    code, _, stderr = rejudge_with_dummy(override)
    assert code == 2
    assert reason in stderr


@pytest.mark.full
def test_rejudged_run_is_extended_after_its_source_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, results = spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results"
    for overrides in (["dataset.limit=2"], ["dataset.limit=4", "rollouts.per_datapoint=2"]):
        run_spec(path, results, *overrides, run_id="first")
        code, stdout, _ = rejudge_with_dummy("--json")
        assert code == 0
        (report,) = json.loads(stdout)
    judged = tmp_path / report["folder"]
    calls = [record["sample"] for record in journal_records(judged) if record["kind"] == "call"]
    assert len(calls) == len({tuple(sample) for sample in calls}) == len(table(judged, "rollouts")) == 8
    assert len([*results.glob("runs/*-rejudged-*")]) == 1
