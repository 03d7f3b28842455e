"""What `nip-run rejudge` refuses, names and follows: edited inputs, missing templates, a source that has grown."""

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


def copied(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder of a copy of `source`, which is the current folder."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return folder / "results"


OWN = ("+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge")


def judged_by_dummy(*words: str) -> tuple[int, str, str]:
    """The exit code of `nip-run rejudge first` with a judge of its own, what it printed, and its notes."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(["rejudge", "first", *OWN, *words])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.sample(1)
@pytest.mark.parametrize("edited", ["dataset", "prompts"])
def test_edited_inputs_of_the_source_are_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    run = copied(source, tmp_path, monkeypatch) / "runs" / "first"
    if edited == "dataset":
        path = run / "inputs" / "dataset.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "label": 1 - row["label"]}) + "\n" for row in rows))
    else:
        (run / "inputs" / "prompts" / "prover.jinja").write_text("Say yes.")
    code, _, told = judged_by_dummy()
    assert code != 0
    assert "has changed since its run started" in told
    with redirect_stderr(StringIO()) as err:
        assert main(["show", "first", "p0"]) != 0
        assert edited != "dataset" or main(["compare", "first", "--assert", "accuracy >= 0.1"]) == 2
    assert "has changed since its run started" in err.getvalue()
    assert ("dataset.jsonl is not what was played" in err.getvalue()) == (edited == "dataset")


@pytest.mark.full
def test_what_was_never_asked_has_no_rates(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(source, tmp_path, monkeypatch)
    with run_chat_server(text="What about the empty input?") as server:
        served_by = (
            f"models.judge.{key}={value}" for key, value in (("provider", "openai"), ("base_url", server.base_url))
        )
        code, out, told = judged_by_dummy(*served_by, "retry.invalid_response.attempts=3", "--json")
    assert code == 0, told
    (told_of,) = json.loads(out)
    metrics = json.loads((tmp_path / told_of["folder"] / "metrics.json").read_text())["metrics"]
    rates = {(row["agent"], row["metric"]): (row["value"], row["n"]) for row in metrics}
    assert rates["verifier", "calls_per_message"] == (3.0, 4)
    assert rates["verifier", "retries_per_round"] == (3.0, 4)
    for metric in ("calls_per_message", "retries_per_round", "token_limit_proportion"):
        assert rates["prover", metric] == (None, 0)
    assert "4 of 4 messages were left empty" in "".join(told_of["notes"])


def test_a_folder_without_the_judges_templates_is_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(source, tmp_path, monkeypatch)
    prompts = tmp_path / "pt"
    prompts.mkdir()
    (prompts / "verifer.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    code, _, told = judged_by_dummy("prompts=pt")
    assert code == 2
    assert "so the prompts of verifier would not change; did you mean 'verifer.jinja'?" in told
    assert "override 'prompts=pt'" in told
    run = {"rejudge": {"run": "firs"}, "name": "other", "prompts": str(prompts)}
    (prompts / "verifier.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    with pytest.raises(SpecError, match="no run 'firs_t'"):
        load_spec({"extends": "results/runs/first/spec.yaml", **run, "rejudge": {"run": "firs_t"}}, (), "results")
    by_id = load_spec({"extends": "results/runs/first/spec.yaml", **run}, (), "results")
    assert by_id.rejudged is not None
    assert by_id.rejudged.run_id == "first"
    taken = f"verifier.last_round.jinja is missing in prompts {prompts}, and is taken from run first"
    assert [line for line in warnings_of(by_id) if "taken from" in line] == [taken]


@pytest.mark.full
def test_what_was_judged_so_is_named_and_the_sources_prefix_means_it(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = copied(source, tmp_path, monkeypatch)
    (results / "runs" / "first").rename(results / "runs" / "any-1")
    manifest = results / "runs" / "any-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"first"', '"any-1"'))
    words = ["rejudge", "any", *OWN]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
        assert main([*words, "-q", "--run-id", "any-1-judged"]) == 0
        assert main([*words, "--run-id", "any-1-judged"]) == 0
    assert "any-1 was already judged by any-1-judged; to judge it again, add --again" in err.getvalue()


def test_from_another_folder_a_wrong_override_is_shown(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with redirect_stderr(StringIO()) as err:
        assert main(["rejudge", str(source / "results" / "runs" / "first"), "agents.verifier.model=nope"]) == 2
    assert "no model group 'nope'" in err.getvalue()


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("rollouts.per_datapoint=3", "has only 1 repeat"),
        ("training.iterations=2", "judging debates again trains nothing"),
        ("until.width=0.1", "set all of its keys: until={...}"),
    ],
)
def test_overrides_that_judging_cannot_follow_are_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, word: str, why: str
) -> None:
    copied(source, tmp_path, monkeypatch)
    code, _, told = judged_by_dummy(word)
    assert code == 2
    assert why in told


@pytest.mark.full
def test_a_source_that_has_grown_makes_the_judged_run_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, results = spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results"
    for grown in (["dataset.limit=2"], ["dataset.limit=4", "rollouts.per_datapoint=2"]):
        run_spec(path, results, *grown, run_id="first")
        code, out, _ = judged_by_dummy("--json")
        assert code == 0
        (told,) = json.loads(out)
    judged = tmp_path / told["folder"]
    calls = [record["sample"] for record in journal_records(judged) if record["kind"] == "call"]
    assert len(calls) == len({tuple(sample) for sample in calls}) == len(table(judged, "rollouts")) == 8
    assert len([*results.glob("runs/*-rejudged-*")]) == 1
