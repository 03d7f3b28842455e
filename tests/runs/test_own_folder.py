"""A run's folder, and the spec saved in it, mean that run; anything else that is made of them is another."""

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
def served() -> Iterator[LoopbackServer]:
    with run_chat_server() as server:
        yield server


@pytest.fixture
def run(served: LoopbackServer, tmp_path: Path) -> Path:
    """The folder of a finished run on some of the datapoints, in another order, with a cache."""
    dataset = {"shuffle": True, "limit": 4}
    run_spec(spec_file(tmp_path, served.base_url, size=6, dataset=dataset, cache="cache.sqlite"), tmp_path / "results")
    return only_run(tmp_path / "results")


@pytest.mark.full
def test_its_folder_shows_it_and_makes_it_longer(run: Path, served: LoopbackServer) -> None:
    results, asked, before = run.parents[1], served.requests, table(run, "rollouts")
    manifest = json.loads((run / "manifest.json").read_bytes())
    for path in (run, run / "spec.yaml"):
        assert run_spec(path, results).was_finished
    assert run_spec(run, results, run_id=run.name).was_finished
    assert served.requests == asked
    longer = run_spec(run, results, "rollouts.per_datapoint=2")
    assert only_run(results) == run
    assert table(run, "rollouts")[:4] == before
    calls = [record for record in journal_records(run) if record["kind"] == "call"]
    assert served.requests - asked == len(calls) - manifest["completions"]
    hashes = [name for name in manifest if name.endswith("sha256") and name != "spec_sha256"]
    same = ("identity", "run_id", "dataset_selection", "cache", *hashes)
    now = json.loads((run / "manifest.json").read_bytes())
    assert {name: now[name] for name in same} == {name: manifest[name] for name in same}
    spec = run.parents[2] / "spec.yaml"
    by_its_spec = run_spec(spec, results, "rollouts.per_datapoint=2")
    assert (by_its_spec.folder, by_its_spec.was_finished) == (longer.folder, True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("--again",), ("models.m.temperature=0.5",), ("--results", "other"), ("COPY",)])
def test_it_is_played_anew_where_that_is_asked_for(run: Path, served: LoopbackServer, words: tuple[str, ...]) -> None:
    home, asked = run.parents[2], served.requests
    if words == ("COPY",):
        path, words = shutil.copytree(run, home / "copy"), ()
    else:
        path = run
    done = nip_run_here(str(path), *words, "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["run_id"] != run.name
    assert not result["was_finished"]
    assert served.requests > asked
    assert any(f"--results {run.parents[1]}" in line for line in result["notes"]) == ("other" in words)


@pytest.mark.full
def test_what_was_changed_in_it_is_noticed_before_anyone_is_asked(run: Path, served: LoopbackServer) -> None:
    results, asked = run.parents[1], served.requests
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
    assert served.requests == asked
