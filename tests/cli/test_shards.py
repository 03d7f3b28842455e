"""The command line with shards: the share of a shard, the merge by the last one, and messages about split runs."""

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


def run_command(folder: Path, *arguments: str) -> CompletedProcess[str]:
    return nip_run_here(*arguments, cwd=folder)


def test_check_prints_the_share_of_a_shard_and_writes_nothing(tmp_path: Path) -> None:
    spec_file(tmp_path, size=10, budget={"usd": 1.0, "completions": 1000}, rollouts={"concurrency": 8})
    process = run_command(tmp_path, "check", "spec.yaml", "--shard", "2/3")
    assert process.returncode == 0, process.stderr
    assert "shard 2/3: 3 of 10 games, 3 datapoints of 10" in process.stdout
    assert "rollouts.concurrency 2 of 8" in process.stdout
    assert not (tmp_path / "results").exists()
    (shard_plan,) = json.loads(run_command(tmp_path, "check", "spec.yaml", "--shard", "1/3", "--json").stdout)
    (complete_plan,) = json.loads(run_command(tmp_path, "check", "spec.yaml", "--json").stdout)
    assert (shard_plan["rollouts"], complete_plan["rollouts"], complete_plan["shard"]) == (4, 10, None)
    assert shard_plan["identity"] == complete_plan["identity"]
    assert shard_plan["shard"]["share"]["budget.completions"] < shard_plan["shard"]["whole"]["budget.completions"]
    assert shard_plan["models"][0]["calls"][1] < complete_plan["models"][0]["calls"][1]


@pytest.mark.full
def test_last_shard_merges_the_run_and_show_selects_a_shard_by_number(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    first = run_command(tmp_path, "spec.yaml", "--shard", "1/2")
    assert first.returncode == 0, first.stderr
    complete_run = only_run(tmp_path / "results")
    assert f"1 of 2 shards of {complete_run.name} are done" in first.stderr
    assert f"nip-run merge {complete_run.name}" in first.stderr
    assert "leaderboard" not in first.stderr
    repeated = run_command(tmp_path, "spec.yaml", "--shard", "1/2")
    assert "was already played; to play it again, add --run-id NAME" in repeated.stderr  # --again excludes --shard
    assert f"{complete_run.name} is played in shards: 1 of 2 are done" in run_command(tmp_path, "runs").stderr
    assert "are not merged yet (started: 1/2)" in run_command(tmp_path, "show", "tiny").stderr
    process = run_command(tmp_path, "show", "tiny", "--shard", "1/2", "--json")
    assert json.loads(process.stdout)["manifest"]["shard"] == [1, 2]
    assert "shard 2/2 of run" in run_command(tmp_path, "show", "tiny", "--shard", "2/2").stderr
    split_message = f"run {complete_run.name} is split into 2 shards (started: 1/2)"
    for arguments, hint in (
        ((complete_run.name,), f"--run-id {complete_run.name} --shard K/2"),
        ((str(complete_run),), f"nip-run merge {complete_run.name}"),
        (
            (complete_run.name, "--shard", "2/2"),
            f"to start this one: nip-run SPEC --run-id {complete_run.name} --shard",
        ),
        ((complete_run.name, "--shard", "1/3"), "not into 3; to resume a started shard: nip-run"),
    ):
        refused, checked = run_command(tmp_path, *arguments), run_command(tmp_path, "check", *arguments)
        assert (refused.returncode, checked.returncode) == (2, 2)
        assert split_message in refused.stderr
        assert hint in refused.stderr
        assert split_message in checked.stderr
    last = run_command(tmp_path, "spec.yaml", "--shard", "2/2", "--json")
    assert [row["run_id"] for row in json.loads(last.stdout)] == [
        f"{complete_run.name}/shards/2-of-2",
        complete_run.name,
    ]
    assert json.loads(last.stdout)[1]["rollouts"] == 4
    assert run_command(tmp_path, "spec.yaml").stderr.count("was already played") == 1
    repeated = run_command(tmp_path, "merge", "tiny")
    assert (repeated.returncode, "was merged already; nothing was changed" in repeated.stderr) == (0, True)


@pytest.mark.full
def test_shard_is_resumed_by_its_folder_but_not_under_another_number(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=12, budget={"completions": 8})
        stopped = run_command(tmp_path, "spec.yaml", "--shard", "1/2")
        assert stopped.returncode == 3, stopped.stderr
        assert server.requests == 4, "its share of the calls"
        assert "budget.completions=N --shard 1/2" in stopped.stderr, "the command that resumes it"
        part = only_run(tmp_path / "results") / "shards" / "1-of-2"
        refused = run_command(tmp_path, str(part), "--shard", "2/2", "budget.completions=2000")
        assert refused.returncode == 2
        assert "is the saved spec of shard 1/2" in refused.stderr
        assert run_command(tmp_path, str(part), "budget.completions=20").returncode == 3
        resumed = run_command(tmp_path, part.parents[1].name, "--shard", "1/2", "budget.completions=2000")
        assert resumed.returncode == 0, resumed.stderr
        samples = [json.dumps(record["sample"]) for record in journal_records(part) if record["kind"] == "call"]
        assert server.requests == len(samples) == len(set(samples)) > 4
        last = run_command(tmp_path, "spec.yaml", "--shard", "2/2", "budget.completions=2000", "-q")
        assert last.returncode == 0, last.stderr
        assert last.stdout.count("\naccuracy") == 2, "of the part and, since shards may differ in budgets, of the run"


@pytest.mark.full
def test_a_sweep_is_played_in_shards_point_by_point(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4, sweep={"seed": [0, 1]}, budget={"completions": 1000})
    for number in ("1", "2"):
        process = run_command(tmp_path, "spec.yaml", "--shard", f"{number}/2", "-q")
        assert process.returncode == 0, process.stderr
    runs = sorted((tmp_path / "results" / "runs").iterdir())
    assert len(runs) == 2
    assert [json.loads((path / "manifest.json").read_text("utf-8"))["rollouts"] for path in runs] == [4, 4]
    sweep = json.loads(run_command(tmp_path, "sweep", "spec.yaml", "--json").stdout)
    assert sum(row["metrics"]["accuracy"]["n"] for row in sweep) == 8


@pytest.mark.full
def test_failed_merge_is_reported_by_the_last_shard_and_by_merge(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    run_command(tmp_path, "spec.yaml", "--shard", "1/2", "-q")
    complete_run = only_run(tmp_path / "results")
    prompt = next((complete_run / "shards/1-of-2/inputs/prompts").iterdir())
    prompt.write_text("Say yes.", "utf-8")
    last = run_command(tmp_path, "spec.yaml", "--shard", "2/2", "-q")
    assert last.returncode == 1
    assert f"inputs/prompts/{prompt.name}" in last.stderr
    merge = run_command(tmp_path, "merge", complete_run.name, "--json")
    assert merge.returncode == 1
    assert json.loads(merge.stdout)["errors"]
    part = str(complete_run / "shards" / "2-of-2")
    dry_run = run_command(tmp_path, "publish", part, "--to", "board", "--as", "acme", "--licence", "MIT", "--dry-run")
    assert "merge the run, then publish it: nip-run merge" in dry_run.stderr
    assert (
        "merge them with nip-run merge, and judge the merged run"
        in run_command(tmp_path, "rejudge", part, "votes=3").stderr
    )


@pytest.mark.full
def test_shards_from_other_disks_are_merged_by_folder(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4)
    for number in ("1", "2"):
        run_command(tmp_path, "spec.yaml", "--shard", f"{number}/2", "-q", "--results", f"disk{number}")
    copies = []
    for number in ("1", "2"):
        copies.append(f"copy{number}")
        shutil.copytree(only_run(tmp_path / f"disk{number}") / "shards" / f"{number}-of-2", tmp_path / copies[-1])
    process = run_command(tmp_path, "merge", *copies)
    assert process.returncode == 0, process.stderr
    (merged,) = (tmp_path / "results" / "runs").iterdir()
    for place, name in (("named", merged.name), ("begun", "tiny")):  # by the manifests of the shards alone
        merged_by_name = run_command(tmp_path, "merge", name, *copies, "--results", place)
        assert merged_by_name.returncode == 0, merged_by_name.stderr
        assert only_run(tmp_path / place).name == merged.name
    unknown = run_command(tmp_path, "merge", "nobody", *copies, "--results", "second")
    assert unknown.returncode == 2
    assert (
        f"'nobody': no run of this name in second was played in shards, and the given shards belong to {merged.name}"
        in (unknown.stderr)
    )
    assert not (tmp_path / "second").exists()
    (tmp_path / "copy1" / "manifest.json").write_text("{", "utf-8")
    damaged = run_command(tmp_path, "merge", *copies, "--results", "third")
    assert damaged.returncode == 1
    assert "copy1 cannot be read as a shard" in damaged.stderr
    assert "missing: 1/2" in damaged.stderr
    refused = run_command(tmp_path, "merge", "nobody", "copy9")
    assert refused.returncode == 2
    assert refused.stderr.count("no run of this name in results was played in shards") == 2


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\udc80", "..", "nobody"])
def test_odd_run_names_are_usage_errors(tmp_path: Path, name: str) -> None:
    for arguments in ((name,), (name, "--shard", "1/2")):
        refused = run_command(tmp_path, *arguments)
        assert (refused.returncode, "spec" in refused.stderr) == (2, True), refused.stderr
