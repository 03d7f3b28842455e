"""The leaderboard of a registry: what is published there by task, its numbers made again, damage contained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from runner.errors import UsageError
from runner.registry.board import RegistryBoard, registry_board
from runner.releases.bundle import Bundle
from runner.results.folder import RunFolder
from runner.results.results import Results
from runner.transports.base import Stored
from runner.transports.folder import FolderTransport
from runner.transports.registry import Registry
from tests.registry.planted import publish, release_of
from tests.support.processes import nip_run_here


class Watched(FolderTransport):
    """A folder that keeps what was read of it."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.opened: list[str] = []

    def open(self, path: str) -> IO[bytes]:
        self.opened.append(path)
        return super().open(path)

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        return super().stored(prefix)


@pytest.fixture
def registry(trained_results: Path, tmp_path: Path) -> Registry:
    """All runs of the small results folder, published by acme."""
    made = Registry(Watched(str(tmp_path / "registry")))
    here = Results(trained_results)
    publish(made, *(release_of(folder, here, "acme") for folder in here.runs()))
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def release(results: Path, name: str, owner: str = "acme", **changes: Any) -> Bundle:
    return release_of(RunFolder(results / "runs" / name), Results(results), owner, **changes)


def edited(results: Path, name: str, place: Path, file: str, change: Any) -> RunFolder:
    """A copy of a run's folder with one JSON file changed by hand."""
    shutil.copytree(results / "runs" / name, place / "runs" / name)
    path = place / "runs" / name / file
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    return RunFolder(path.parent)


def by_release(board: RegistryBoard) -> dict[str, Mapping[str, Any]]:
    return {row["release"]: row for row in board.rows}


def test_benchmarks_rank_by_task_with_all_training_behind_them_and_training_runs_do_not(
    registry: Registry, cache: Path
) -> None:
    board = registry_board(registry, cache=cache)
    rows = by_release(board)
    assert rows.keys() == {"run/acme/before@1", "run/acme/after@1", "run/acme/learn-t1@1"}
    assert board.left_out == []
    before, after = rows["run/acme/before@1"], rows["run/acme/after@1"]
    assert before["task"] == after["task"]
    assert {before["rank"], after["rank"]} <= {1, 2}
    assert before["effort"]["rollouts"] == 0
    assert (after["effort"]["rollouts"], after["effort"]["datapoints"]) == (12, 12)
    assert after["effort"]["at_least"] == []
    assert after["effort"]["runs"] == ["learn"]
    assert after["marks"][0] == "trained on 12 of its 18 datapoints"
    assert after["trained_on"] == {
        "trained_on": 12, "datapoints": 18, "at_least": False, "shown": "trained on 12 of its 18 datapoints"
    }  # fmt: skip
    assert before["trained_on"] is None
    assert {edge["proof"] for edge in after["lineage"]} == {"declared"}
    assert rows["run/acme/learn-t1@1"]["marks"] == []  # it measures on the test split


def test_a_second_look_reads_nothing_again_but_the_list(registry: Registry, cache: Path, trained_results: Path) -> None:
    first = registry_board(registry, cache=cache)
    watched = registry._transport
    assert isinstance(watched, Watched)
    assert not any("journal" in path for path in watched.opened)
    watched.opened.clear()
    again = Registry(watched)
    assert registry_board(again, cache=cache).to_json() == first.to_json()
    assert {path.rpartition("/")[2] for path in watched.opened} == {"release.sha256"}
    publish(again, release(trained_results, "before", owner="other"))
    watched.opened.clear()
    assert len(registry_board(Registry(watched), cache=cache).rows) == len(first.rows) + 1
    read = [path for path in watched.opened if not path.endswith("release.sha256")]
    assert read
    assert all(path.startswith("run/other/before/1/") for path in read)


def test_two_owners_runs_of_one_id_both_have_rows(registry: Registry, cache: Path, trained_results: Path) -> None:
    publish(registry, release(trained_results, "before", owner="other"))
    rows = by_release(registry_board(registry, cache=cache))
    ours, theirs = rows["run/acme/before@1"], rows["run/other/before@1"]
    assert ours["run_id"] == theirs["run_id"] == "before"
    assert ours["accuracy"] == theirs["accuracy"]
    assert ours["rank"] == theirs["rank"]


def test_private_yanked_and_older_releases_are_left_out_and_counted(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(
        registry,
        release(trained_results, "before", version="2"),
        release(trained_results, "before", owner="shy", visibility="private"),
        release(trained_results, "before", owner="sorry"),
    )
    registry.yank(release(trained_results, "before", owner="sorry").release.reference, "wrong dataset")
    board = registry_board(registry, cache=cache)
    assert (board.private, board.yanked, board.older) == (1, 1, 1)
    assert {name for name in by_release(board) if "before" in name} == {"run/acme/before@2"}


def test_numbers_that_do_not_follow_from_the_records_are_refused_by_name_and_the_others_stay(
    registry: Registry, cache: Path, trained_results: Path, tmp_path: Path
) -> None:
    def better(said: dict[str, Any]) -> None:
        row = next(row for row in said["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
        row |= {"value": 0.99, "ci_low": 0.98, "ci_high": 1.0}

    forged = edited(trained_results, "before", tmp_path / "forged", "metrics.json", better)
    narrow = edited(trained_results, "after", tmp_path / "narrow", "metrics.json", _narrower)
    here = Results(trained_results)
    rows = dict(release(trained_results, "before").contents)["data/rollouts.jsonl"]
    assert isinstance(rows, bytes)
    lines = rows.splitlines(keepends=True)
    flipped = rows.replace(b'"correct":false', b'"correct":true')
    assert flipped != rows
    wrongs = {
        "forged": release_of(forged, here, "forged"),
        "narrow": release_of(narrow, here, "narrow"),
        "flipped": release(trained_results, "before", "flipped", contents={"data/rollouts.jsonl": flipped}),
        "fewer": release(trained_results, "before", "fewer", contents={"data/rollouts.jsonl": b"".join(lines[:-1])}),
        "twice": release(trained_results, "before", "twice", contents={"data/rollouts.jsonl": rows + lines[0]}),
        "doubled": release(trained_results, "before", "doubled", contents={"data/rollouts.jsonl": lines[1] * 18}),
        "others": release(trained_results, "after", "others", contents={"data/rollouts.jsonl": rows}),
        "noise": release(trained_results, "before", "noise", contents={"data/rollouts.jsonl": b"{" * 100_000 + b"\n"}),
        "lies": release(trained_results, "before", "lies", facts={"accuracy": {"value": 0.9}}),
        "spec": release(trained_results, "before", "spec", contents={"data/spec.yaml": b"a: [&x 1, *x]\n"}),
        "empty": release(trained_results, "before", "empty", contents={"data/manifest.json": b"{}"}),
        "odd": release(trained_results, "before", "odd", facts={"trained": 7}),
    }  # fmt: skip
    good = len(registry_board(registry, cache=cache).rows)
    publish(registry, *wrongs.values())
    board = registry_board(registry, cache=cache)
    assert len(board.rows) == good
    why = {name.split("/")[1]: why for name, why in board.left_out}
    assert why.keys() == wrongs.keys()
    assert "its numbers do not follow from its records: accuracy: value is 0.99" in why["forged"]
    assert "accuracy: ci_low is 0.5, and" in why["narrow"]
    assert "correct is True, and follows to be False" in why["flipped"]
    assert "it has 17 rollouts" in why["fewer"]
    assert "it has 19 rollouts" in why["twice"]
    assert "is not that of game 0 of its spec" in why["doubled"]
    assert "is not that of game 0 of its spec" in why["others"]
    assert "its release says accuracy 0.9" in why["lies"]
    assert registry_board(registry, cache=cache).left_out == board.left_out


def _narrower(said: dict[str, Any]) -> None:
    row = next(row for row in said["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    row |= {"ci_low": 0.5, "ci_high": 0.5}


def test_a_damaged_release_is_named_and_read_again_once_it_is_whole(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, release(trained_results, "before", owner="other"))
    root = Path(registry.where.removeprefix("file:"))
    for file in ("data/inputs/dataset.jsonl", "data/metrics.json", "release.json"):
        path = root / "run/other/before/1" / file
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b"~\n")
        place = cache / Path(file).name
        board = registry_board(Registry(FolderTransport(str(root))), cache=place)
        assert "run/other/before@1" not in by_release(board)
        assert [name for name, _ in board.left_out] == ["run/other/before@1"]
        assert Path(file).name in board.left_out[0][1]
        path.write_bytes(whole)
        assert "run/other/before@1" in by_release(registry_board(Registry(FolderTransport(str(root))), cache=place))


def test_a_run_that_trains_is_no_benchmark_whatever_its_release_says(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, release(trained_results, "learn", owner="sly", facts={"kind": "benchmark"}))
    board = registry_board(registry, cache=cache)
    assert [name for name, _ in board.left_out] == ["run/sly/learn@1"]
    assert "is of kind training, and its release says 'benchmark'" in board.left_out[0][1]
    assert all("learn@" not in name for name in by_release(board))


def test_a_spec_that_plays_more_than_it_brings_takes_no_time(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    """A billion games that nobody played would be a billion rows to look for."""
    spec = (trained_results / "runs" / "before" / "spec.yaml").read_text()
    assert "per_datapoint: 1\n" in spec
    huge = spec.replace("per_datapoint: 1\n", "per_datapoint: 1000000000\n").encode()
    publish(registry, release(trained_results, "before", owner="huge", contents={"data/spec.yaml": huge}))
    (left,) = registry_board(registry, cache=cache).left_out
    assert left[0] == "run/huge/before@1"
    assert "its spec plays 18,000,000,000" in left[1]


def test_the_command_shows_ranks_training_and_marks_and_its_json_is_complete(
    registry: Registry, tmp_path: Path
) -> None:
    where, home = registry.where, str(tmp_path / "home")
    done = nip_run_here("leaderboard", "--from", where, "code/v1", cwd=tmp_path, XDG_CACHE_HOME=home)
    assert done.returncode == 0, done.stderr
    assert "acme/after@1" in done.stdout
    assert "12 rollouts" in done.stdout
    assert "trained on 12 of its 18 datapoints" in done.stdout
    shown = nip_run_here("leaderboard", "--from", where, "--json", cwd=tmp_path, XDG_CACHE_HOME=home)
    said = json.loads(shown.stdout)
    assert said["where"] == where
    assert {"release", "release_sha256", "effort", "trained_on", "lineage", "marks", "rank"} <= said["rows"][0].keys()
    wrong = nip_run_here("leaderboard", "--from", where, "code/v2", cwd=tmp_path, XDG_CACHE_HOME=home)
    assert (wrong.returncode, "no benchmark 'code/v2' is published" in wrong.stderr) == (2, True)


def test_an_unknown_benchmark_is_a_mistake_of_the_user(registry: Registry, cache: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'code/v1'"):
        registry_board(registry, "code/v1x", cache)
