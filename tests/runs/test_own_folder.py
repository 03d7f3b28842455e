"""A run's folder and the spec saved in it refer to that run; changed settings and copies give another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.base.errors import RunDirectoryError, RunError, UsageError
from tests.support.processes import nip_run_here
from tests.support.runs import journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_chat_server() as running_server:
        yield running_server


@pytest.fixture
def run(server: LoopbackServer, tmp_path: Path) -> Path:
    """Return the folder of a finished run on some datapoints, in another order, with a cache."""
    dataset = {"shuffle": True, "limit": 4}
    run_spec(spec_file(tmp_path, server.base_url, size=6, dataset=dataset, cache="cache.sqlite"), tmp_path / "results")
    return only_run(tmp_path / "results")


@pytest.mark.full
def test_a_run_is_shown_and_extended_by_its_folder(run: Path, server: LoopbackServer) -> None:
    results, request_count, rows_before = run.parents[1], server.requests, table(run, "rollouts")
    manifest = json.loads((run / "manifest.json").read_bytes())
    for path in (run, run / "spec.yaml"):
        assert run_spec(path, results).was_finished
    assert run_spec(run, results, run_id=run.name).was_finished
    assert server.requests == request_count
    longer = run_spec(run, results, "rollouts.per_datapoint=2")
    assert only_run(results) == run
    assert table(run, "rollouts")[:4] == rows_before
    calls = [record for record in journal_records(run) if record["kind"] == "call"]
    assert server.requests - request_count == len(calls) - manifest["completions"]
    hashes = [name for name in manifest if name.endswith("sha256") and name != "spec_sha256"]
    unchanged_fields = ("identity", "run_id", "dataset_selection", "cache", *hashes)
    new_manifest = json.loads((run / "manifest.json").read_bytes())
    assert {name: new_manifest[name] for name in unchanged_fields} == {
        name: manifest[name] for name in unchanged_fields
    }
    spec = run.parents[2] / "spec.yaml"
    extended_by_spec = run_spec(spec, results, "rollouts.per_datapoint=2")
    assert (extended_by_spec.folder, extended_by_spec.was_finished) == (longer.folder, True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arguments", [("--again",), ("models.m.temperature=0.5",), ("--results", "other"), ("COPY",)])
def test_options_and_a_copied_folder_start_a_new_run(
    run: Path, server: LoopbackServer, arguments: tuple[str, ...]
) -> None:
    folder, request_count = run.parents[2], server.requests
    if arguments == ("COPY",):
        path, arguments = shutil.copytree(run, folder / "copy"), ()
    else:
        path = run
    done = nip_run_here(str(path), *arguments, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["run_id"] != run.name
    assert not result["was_finished"]
    assert server.requests > request_count
    assert any(f"--results {run.parents[1]}" in line for line in result["notes"]) == ("other" in arguments)


@pytest.mark.full
def test_changed_files_of_a_run_are_noticed_before_any_call(run: Path, server: LoopbackServer) -> None:
    results, request_count = run.parents[1], server.requests
    for path, old, new in (
        (run / "inputs" / "prompts" / "prover.jinja", b"", b"Now. "),
        (run / "inputs" / "dataset.jsonl", b'"label":1', b'"label":0'),
        (run / "spec.yaml", b"\nseed: 7", b"\nseed: 8"),
    ):
        content = path.read_bytes()
        assert content.count(old)
        path.write_bytes(content.replace(old, new, 1))
        with pytest.raises(RunDirectoryError, match="were changed since the run started"):
            run_spec(run, results)
        path.write_bytes(content)
    assert run_spec(run, results).was_finished
    with pytest.raises(UsageError, match=r"dataset\.limit: .* use the run's original spec"):
        run_spec(run, results, "dataset.limit=6")
    with pytest.raises(RunDirectoryError, match=r"these keys differ: models\.m\.temperature\. "):
        run_spec(run, results, "models.m.temperature=0.5", run_id=run.name)
    (run / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"has no manifest\.json"):
        run_spec(run, results)
    assert server.requests == request_count
