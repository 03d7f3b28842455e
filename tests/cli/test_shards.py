"""The command line with shards: a part's share, the merge by the last, what is said of a run that is in parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.processes import nip_run_here
from tests.support.runs import journal_records, only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def run(here: Path, *words: str) -> CompletedProcess[str]:
    return nip_run_here(*words, cwd=here)


def test_check_says_the_share_of_a_shard_and_writes_nothing(tmp_path: Path) -> None:
    spec_file(tmp_path, size=10, budget={"usd": 1.0, "completions": 1000}, rollouts={"concurrency": 8})
    said = run(tmp_path, "check", "spec.yaml", "--shard", "2/3")
    assert said.returncode == 0, said.stderr
    assert "shard 2/3: 3 of 10 games, 3 datapoints of 10" in said.stdout
    assert "rollouts.concurrency 2 of 8" in said.stdout
    assert not (tmp_path / "results").exists()
    (of_shard,) = json.loads(run(tmp_path, "check", "spec.yaml", "--shard", "1/3", "--json").stdout)
    (whole,) = json.loads(run(tmp_path, "check", "spec.yaml", "--json").stdout)
    assert (of_shard["rollouts"], whole["rollouts"], whole["shard"]) == (4, 10, None)
    assert of_shard["identity"] == whole["identity"]
    assert of_shard["shard"]["share"]["budget.completions"] < of_shard["shard"]["whole"]["budget.completions"]
    assert of_shard["models"][0]["calls"][1] < whole["models"][0]["calls"][1]


@pytest.mark.full
def test_the_last_shard_merges_and_a_part_is_shown_by_its_number(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    first = run(tmp_path, "spec.yaml", "--shard", "1/2")
    assert first.returncode == 0, first.stderr
    whole = only_run(tmp_path / "results")
    assert f"1 of 2 shards of {whole.name} are done" in first.stderr
    assert f"nip-run merge {whole.name}" in first.stderr
    assert "leaderboard" not in first.stderr
    assert f"{whole.name} is played in shards: 1 of 2 are done" in run(tmp_path, "runs").stderr
    assert "are not merged yet (started: 1/2)" in run(tmp_path, "show", "tiny").stderr
    shown = run(tmp_path, "show", "tiny", "--shard", "1/2", "--json")
    assert json.loads(shown.stdout)["manifest"]["shard"] == [1, 2]
    assert "shard 2/2 of run" in run(tmp_path, "show", "tiny", "--shard", "2/2").stderr
    begun = f"run {whole.name} is split into 2 shards (started: 1/2)"
    for words, said in (
        ((whole.name,), f"--run-id {whole.name} --shard K/2"),
        ((str(whole),), f"nip-run merge {whole.name}"),
        ((whole.name, "--shard", "2/2"), f"to start this one: nip-run SPEC --run-id {whole.name} --shard"),
        ((whole.name, "--shard", "1/3"), "not into 3; to resume a started shard: nip-run"),
    ):
        refused, checked = run(tmp_path, *words), run(tmp_path, "check", *words)
        assert (refused.returncode, checked.returncode) == (2, 2)
        assert begun in refused.stderr
        assert said in refused.stderr
        assert begun in checked.stderr
    last = run(tmp_path, "spec.yaml", "--shard", "2/2", "--json")
    assert [one["run_id"] for one in json.loads(last.stdout)] == [f"{whole.name}/shards/2-of-2", whole.name]
    assert json.loads(last.stdout)[1]["rollouts"] == 4
    assert run(tmp_path, "spec.yaml").stderr.count("was already played") == 1
    again = run(tmp_path, "merge", "tiny")
    assert (again.returncode, "was merged already; nothing was changed" in again.stderr) == (0, True)


@pytest.mark.full
def test_a_part_is_resumed_by_its_folder_and_by_no_other_number(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=12, budget={"completions": 8})
        stopped = run(tmp_path, "spec.yaml", "--shard", "1/2")
        assert stopped.returncode == 3, stopped.stderr
        assert server.requests == 4, "its share of the calls"
        assert "budget.completions=N --shard 1/2" in stopped.stderr, "the command that resumes it"
        part = only_run(tmp_path / "results") / "shards" / "1-of-2"
        wrong = run(tmp_path, str(part), "--shard", "2/2", "budget.completions=2000")
        assert wrong.returncode == 2
        assert "is the saved spec of shard 1/2" in wrong.stderr
        assert run(tmp_path, str(part), "budget.completions=20").returncode == 3
        again = run(tmp_path, part.parents[1].name, "--shard", "1/2", "budget.completions=2000")
        assert again.returncode == 0, again.stderr
        samples = [json.dumps(record["sample"]) for record in journal_records(part) if record["kind"] == "call"]
        assert server.requests == len(samples) == len(set(samples)) > 4
        last = run(tmp_path, "spec.yaml", "--shard", "2/2", "budget.completions=2000", "-q")
        assert last.returncode == 0, last.stderr
        assert last.stdout.count("\naccuracy") == 2, "of the part and, since shards may differ in budgets, of the run"


@pytest.mark.full
def test_a_sweep_is_played_in_shards_point_by_point(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4, sweep={"seed": [0, 1]}, budget={"completions": 1000})
    for number in ("1", "2"):
        done = run(tmp_path, "spec.yaml", "--shard", f"{number}/2", "-q")
        assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "results" / "runs").iterdir())
    assert len(runs) == 2
    assert [json.loads((path / "manifest.json").read_text("utf-8"))["rollouts"] for path in runs] == [4, 4]
    sweep = json.loads(run(tmp_path, "sweep", "spec.yaml", "--json").stdout)
    assert sum(row["metrics"]["accuracy"]["n"] for row in sweep) == 8


@pytest.mark.full
def test_a_merge_that_cannot_be_made_is_said_by_the_last_shard_and_by_merge(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    run(tmp_path, "spec.yaml", "--shard", "1/2", "-q")
    whole = only_run(tmp_path / "results")
    prompt = next((whole / "shards/1-of-2/inputs/prompts").iterdir())
    prompt.write_text("Say yes.", "utf-8")
    last = run(tmp_path, "spec.yaml", "--shard", "2/2", "-q")
    assert last.returncode == 1
    assert f"inputs/prompts/{prompt.name}" in last.stderr
    asked = run(tmp_path, "merge", whole.name, "--json")
    assert asked.returncode == 1
    assert json.loads(asked.stdout)["errors"]
    part = str(whole / "shards" / "2-of-2")
    published = run(tmp_path, "publish", part, "--to", "board", "--as", "acme", "--licence", "MIT", "--dry-run")
    assert "merge the run, then publish it: nip-run merge" in published.stderr
    assert "merge them with nip-run merge, and judge the merged run" in run(tmp_path, "rejudge", part, "votes=3").stderr


@pytest.mark.full
def test_parts_on_other_disks_are_merged_by_their_folders(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    for number in ("1", "2"):
        run(tmp_path, "spec.yaml", "--shard", f"{number}/2", "-q", "--results", f"disk{number}")
    copies = []
    for number in ("1", "2"):
        copies.append(f"copy{number}")
        shutil.copytree(only_run(tmp_path / f"disk{number}") / "shards" / f"{number}-of-2", tmp_path / copies[-1])
    done = run(tmp_path, "merge", *copies)
    assert done.returncode == 0, done.stderr
    (merged,) = (tmp_path / "results" / "runs").iterdir()
    for place, name in (("named", merged.name), ("begun", "tiny")):  # by what the parts say alone
        named = run(tmp_path, "merge", name, *copies, "--results", place)
        assert named.returncode == 0, named.stderr
        assert only_run(tmp_path / place).name == merged.name
    other = run(tmp_path, "merge", "nobody", *copies, "--results", "second")
    assert other.returncode == 2
    assert (
        f"'nobody': no run of this name in second was played in shards, and the given shards belong to {merged.name}"
        in (other.stderr)
    )
    assert not (tmp_path / "second").exists()
    (tmp_path / "copy1" / "manifest.json").write_text("{", "utf-8")
    damaged = run(tmp_path, "merge", *copies, "--results", "third")
    assert damaged.returncode == 1
    assert "copy1 cannot be read as a shard" in damaged.stderr
    assert "missing: 1/2" in damaged.stderr
    wrong = run(tmp_path, "merge", "nobody", "copy9")
    assert wrong.returncode == 2
    assert wrong.stderr.count("no run of this name in results was played in shards") == 2


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\udc80", "..", "nobody"])
def test_no_name_is_so_odd_that_it_cannot_be_asked_for(tmp_path: Path, name: str) -> None:
    for words in ((name,), (name, "--shard", "1/2")):
        refused = run(tmp_path, *words)
        assert (refused.returncode, "spec" in refused.stderr) == (2, True), refused.stderr
