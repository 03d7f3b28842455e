"""The leaderboard of a registry: runs by task, recomputed numbers, and damaged releases left out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import CHECKSUM, read_checksum
from runner.registry.board.board import PublishedRow, registry_board, separate_tasks
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.interface import IndexedRelease
from runner.registry.transports.listing import read_small_file
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.unranked import Unranked
from tests.registry.planted import RecordingFolder, build_planted_release, publish, rows_by_release
from tests.support.board_pages import board_row
from tests.support.processes import nip_run_here
from tests.support.registry_locations import LOCATIONS, SIMILAR_LOCATIONS


def build_release(results: Path, name: str, owner: str = "acme", **changes: Any) -> Bundle:
    return build_planted_release(RunFolder(results / "runs" / name), Results(results), owner, **changes)


def edit_run(results: Path, name: str, target: Path, file: str, change: Any) -> RunFolder:
    """Copy a run's folder, and change one of its JSON files."""
    shutil.copytree(results / "runs" / name, target / "runs" / name)
    path = target / "runs" / name / file
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return RunFolder(path.parent)


def test_each_task_has_its_own_list_even_if_its_runs_are_unranked() -> None:
    """The view puts unranked runs of a task, here `lost` and `replay`, below the list of another task."""

    def row(name: str, task: str | None, **changes: Any) -> PublishedRow:
        return board_row(benchmark="b", run_id=name, task=task, **changes)

    unranked = {"rank": None, "rank_last": None}
    rows = [
        row("best", "large"),
        row("tree", "large", **unranked, reason="tree: its samples are not independent games"),
        row("lost", "small", **unranked, reason="incomplete: 1 of 6 rollouts lost in transport"),
        row("alone", "single", **unranked, reason=Unranked.OTHER_DATAPOINTS.value),
        row("replay", "small", **unranked, reason="replay of lost"),
        row("next", "second", list=2),
    ]
    positions = {listed.run_id: (listed.list, listed.rank) for listed in separate_tasks(rows)}
    assert positions == {
        "best": (1, 1), "tree": (1, None), "lost": (3, None), "alone": (4, 1), "replay": (3, None), "next": (2, 1),
    }  # fmt: skip


@pytest.mark.full
def test_benchmarks_are_ranked_by_task_with_training_effort_and_training_runs_are_not(
    registry: Registry, cache: Path
) -> None:
    board = registry_board(registry, cache=cache)
    rows = rows_by_release(board)
    assert rows.keys() == {"run/acme/before@1", "run/acme/after@1", "run/acme/learn-t1@1"}
    assert board.left_out == []
    before, after = rows["run/acme/before@1"], rows["run/acme/after@1"]
    assert before["task"] == after["task"]
    assert (before["rank"], after["rank"]) == (1, None)
    assert after["reason"].startswith("its verdicts come from the labels: the toy model")
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
    marks = rows["run/acme/learn-t1@1"]["marks"]  # no overlap, because it measures on the test split
    assert [mark.partition(":")[0] for mark in marks] == [
        "test of learn, after iteration 0",
        "weights not known",
    ]


class ListedFolder(RecordingFolder):
    """A folder transport that also lists releases in the order of publication, like that of a server."""

    folders: tuple[str, ...] = ()

    def list_releases(self, prefix: str = "") -> Iterator[IndexedRelease]:
        for folder in self.folders:
            if folder.startswith(prefix):
                sha256 = read_checksum(read_small_file(self.open(f"{folder}/{CHECKSUM}"), CHECKSUM, 1_000))
                yield IndexedRelease(folder, sha256, None, signed=False)

    def plan_prefetch(self, paths: Sequence[str]) -> None:
        """Do nothing."""


@pytest.mark.full
def test_board_of_a_server_ranks_the_copy_that_was_published_first(trained_results: Path, tmp_path: Path) -> None:
    owners = ("acme", "zed")
    for first, second in (owners, owners[::-1]):
        transport = ListedFolder(str(tmp_path / first))
        transport.folders = (f"run/{first}/before/1", f"run/{second}/before/1")
        folder = Registry(FolderTransport(str(tmp_path / first)))
        publish(folder, *(build_release(trained_results, "before", owner) for owner in owners))
        rows = rows_by_release(registry_board(Registry(transport), cache=tmp_path / "cache"))
        assert {row["owner"]: row["rank"] for row in rows.values()} == {first: 1, second: None}


@pytest.mark.full
def test_second_board_reads_only_the_listing_and_new_releases(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    watched = registry._transport
    assert isinstance(watched, RecordingFolder)
    first = registry_board(registry, cache=cache.with_name("another"))
    cache = cache.with_name("another")
    assert any("rollouts.jsonl" in path for path in watched.opened)
    assert not any("journal" in path for path in watched.opened)
    watched.opened.clear()
    second_registry = Registry(watched)
    assert registry_board(second_registry, cache=cache).to_json() == first.to_json()
    assert {path.rpartition("/")[2] for path in watched.opened} == {"release.sha256"}
    publish(second_registry, build_release(trained_results, "before", owner="other"))
    watched.opened.clear()
    assert len(registry_board(Registry(watched), cache=cache).rows) == len(first.rows) + 1
    read = [path for path in watched.opened if not path.endswith("release.sha256")]
    assert read
    assert all(path.startswith("run/other/before/1/") for path in read)


@pytest.mark.full
def test_files_that_the_board_reads_again_after_an_upgrade_are_prefetched(
    registry: Registry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    monkeypatch.setattr(
        registry,
        "plan_prefetch",
        lambda files: announced.extend(f"{entry.reference.folder}/{path}" for entry, path in files),
    )
    watched = registry._transport
    assert isinstance(watched, RecordingFolder)
    registry_board(registry, cache=cache)
    assert announced == []
    monkeypatch.setattr("runner.registry.board.cache.__version__", "99.0.0")
    watched.opened.clear()
    registry_board(registry, cache=cache)
    rollouts = {path for path in watched.opened if path.endswith("/rollouts.jsonl")}
    assert rollouts
    assert rollouts <= set(announced) <= set(watched.opened)


@pytest.mark.full
def test_runs_of_two_owners_with_the_same_id_both_have_rows(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, build_release(trained_results, "before", owner="other"))
    rollouts = bytes(build_release(trained_results, "before").contents["data/rollouts.jsonl"])
    replayed = {"data/rollouts.jsonl": rollouts.replace(b'{"', b'{ "', 1)}
    publish(registry, build_release(trained_results, "before", owner="third", contents=replayed))
    facts = {**build_release(trained_results, "before").release.facts, "replay_of": ["before", None]}
    replay = {"data/rollouts.jsonl": rollouts.replace(b'{"', b'{  "', 1)}
    publish(registry, build_release(trained_results, "before", owner="replays", contents=replay, facts=facts))
    rows = rows_by_release(registry_board(registry, cache=cache))
    assert (
        "a replay of before, without calls to models" in rows["run/replays/before@1"]["marks"]
    )  # a replay, not another play
    original, copy = rows["run/acme/before@1"], rows["run/other/before@1"]
    assert "another play of run/acme/before@1" in rows["run/third/before@1"]["marks"]
    assert "another play of run/third/before@1" in original["marks"]
    assert original["run_id"] == copy["run_id"] == "before"
    assert original["accuracy"] == copy["accuracy"]
    ranked = [row["release"] for row in rows.values() if row["run_id"] == "before" and row["rank"] is not None]
    assert len(ranked) == 1  # copies of one run are one sample
    copies = [row for row in rows.values() if row["run_id"] == "before" and row["rank"] is None]
    assert {row["reason"] for row in copies} == {
        f"not a sample of its own: 18 of its 18 verdicts come from answers that it shares with {ranked[0]}"
    }
    assert "the same rollouts as run/other/before@1" in original["marks"]
    assert "the same rollouts as run/acme/before@1" in copy["marks"]


@pytest.mark.full
def test_private_yanked_and_older_releases_are_left_out_and_counted(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(
        registry,
        build_release(trained_results, "before", version="2"),
        build_release(trained_results, "before", owner="shy", visibility="private"),
        build_release(trained_results, "before", owner="sorry"),
    )
    registry.yank(build_release(trained_results, "before", owner="sorry").release.reference, "wrong dataset")
    board = registry_board(registry, cache=cache)
    assert (board.private, board.yanked, board.older) == (1, 1, 1)
    assert {name for name in rows_by_release(board) if "before" in name} == {"run/acme/before@2"}


def build_invalid_release(case: str, results: Path, folder: Path) -> Bundle:
    """Build an invalid release of the run `before` by another owner."""
    contents, results_folder = build_release(results, "before").contents, Results(results)
    rows = contents["data/rollouts.jsonl"]
    assert isinstance(rows, bytes)
    lines = rows.splitlines(keepends=True)
    records = {
        "flipped": rows.replace(b'"correct":false', b'"correct":true'),
        "fewer": b"".join(lines[:-1]),
        "twice": rows + lines[0],
        "doubled": lines[1] * 18,
        "noise": b"{" * 100_000 + b"\n" * 18,
        "decisions": rows.replace(b'"decision":0', b'"decision":1'),
        "riches": re.sub(rb'"rewards":\{[^}]*\}', b'"rewards":{"verifier":1e308}', rows),
        "endless": re.sub(rb'"rounds":\d+', b'"rounds":9223372036854775807', rows),
        "typed": re.sub(rb'"error":null', b'"error":["x"]', rows),
    }
    facts = {"lies": {"accuracy": {"value": 0.9}}, "odd": {"trained": 7}, "model": {"trained": []}}
    files = {"spec": ("data/spec.yaml", b"a: [&x 1, *x]\n"), "empty": ("data/manifest.json", b"{}")}
    if case in records:
        assert records[case] != rows
        return build_release(results, "before", case, contents={"data/rollouts.jsonl": records[case]})
    if case in facts:
        return build_release(results, "before", case, facts=facts[case])
    if case in files:
        return build_release(results, "before", case, contents=dict([files[case]]))
    if case == "cost":
        return build_planted_release(
            edit_run(results, "before", folder, "manifest.json", _raise_cost), results_folder, case
        )
    change = {"forged": _raise_accuracy, "narrow": _narrow_interval}[case]
    return build_planted_release(edit_run(results, "before", folder, "metrics.json", change), results_folder, case)


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("forged", "the run's metrics do not follow from its records: accuracy: value is 0.99"),
        ("flipped", "correct is True, but must be False"),
        ("model", "the models in its release's facts are not those in its spec.yaml"),
        ("narrow", "accuracy: ci_low is 0.5, but"),
        ("decisions", ""),
        ("riches", "a reward exceeds"),
        ("endless", "rounds has the impossible value '9223372036854775807'"),
        ("typed", "error has the impossible value"),
        ("cost", "the run's manifest says cost_usd 1e+308, which is out of range"),
        ("fewer", "the run has 17 rollouts"),
        ("twice", "the run has 19 rollouts"),
        ("doubled", "is not game 0 of its spec"),
        ("noise", "not JSON"),
        ("lies", "the release says accuracy 0.9"),
        ("spec", "not those in its spec.yaml"),
        ("empty", "manifest"),
        ("odd", "invalid facts of a run: trained cannot be '7'"),
    ],
)
def test_release_that_contradicts_its_records_is_left_out_and_others_stay(
    registry: Registry, cache: Path, trained_results: Path, tmp_path: Path, case: str, reason: str
) -> None:
    publish(registry, build_invalid_release(case, trained_results, tmp_path / case))
    board = registry_board(registry, cache=cache)
    assert len(board.rows) == 3
    assert [name for name, _ in board.left_out] == [f"run/{case}/before@1"]
    assert reason in board.left_out[0][1]
    watched = registry._transport
    assert isinstance(watched, RecordingFolder)
    watched.opened.clear()
    assert registry_board(registry, cache=cache).left_out == board.left_out
    assert not any("/data/" in path for path in watched.opened)


def _raise_accuracy(metrics: dict[str, Any]) -> None:
    row = next(row for row in metrics["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    row |= {"value": 0.99, "ci_low": 0.98, "ci_high": 1.0}


def _raise_cost(manifest: dict[str, Any]) -> None:
    manifest["cost_usd"] = 1e308


def _narrow_interval(metrics: dict[str, Any]) -> None:
    row = next(row for row in metrics["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    row |= {"ci_low": 0.5, "ci_high": 0.5}


@pytest.mark.full
@pytest.mark.parametrize(
    "file", ["data/inputs/dataset.jsonl", "data/metrics.json", "data/rollouts.jsonl", "release.json"]
)
def test_damaged_release_is_reported_and_read_again_after_its_repair(
    registry: Registry, cache: Path, trained_results: Path, file: str
) -> None:
    publish(registry, build_release(trained_results, "before", owner="other"))
    path = Path(registry.address.removeprefix("file:")) / "run/other/before/1" / file
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"~\n")
    board = registry_board(registry, cache=cache)
    assert len(board.rows) == 3
    assert [name for name, _ in board.left_out] == ["run/other/before@1"]
    assert Path(file).name in board.left_out[0][1]
    path.write_bytes(content)
    assert "run/other/before@1" in rows_by_release(registry_board(registry, cache=cache))


@pytest.mark.full
def test_training_run_published_as_a_benchmark_is_left_out(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, build_release(trained_results, "learn", owner="sly", facts={"kind": "benchmark"}))
    board = registry_board(registry, cache=cache)
    assert [name for name, _ in board.left_out] == ["run/sly/learn@1"]
    assert "is of kind training, but its release says 'benchmark'" in board.left_out[0][1]
    assert all("learn@" not in name for name in rows_by_release(board))


@pytest.mark.full
def test_run_that_claims_models_not_in_its_stage_log_is_left_out(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    bundle = build_release(trained_results, "learn", owner="sly")
    groups = [
        {**group, "made": [{**model, "weights_sha256": "ab" * 32} for model in group["made"]]}
        for group in bundle.release.facts["trained"]
    ]
    publish(registry, build_release(trained_results, "learn", owner="sly", facts={"trained": groups}))
    for _ in range(2):
        board = registry_board(registry, cache=cache)
        assert [name for name, _ in board.left_out] == ["run/sly/learn@1"]
        assert "are not those in its spec.yaml and its stage log" in board.left_out[0][1]
        assert len(board.rows) == 3


@pytest.mark.gate
def test_spec_with_a_billion_games_is_refused_without_enumerating_them(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    """Without the check, the board would look for a billion rows."""
    spec = (trained_results / "runs" / "before" / "spec.yaml").read_text()
    assert "per_datapoint: 1\n" in spec
    huge = spec.replace("per_datapoint: 1\n", "per_datapoint: 1000000000\n").encode()
    publish(registry, build_release(trained_results, "before", owner="huge", contents={"data/spec.yaml": huge}))
    (left_out,) = registry_board(registry, cache=cache).left_out
    assert left_out[0] == "run/huge/before@1"
    assert "its spec plays 18,000,000,000" in left_out[1]


@pytest.mark.full
def test_leaderboard_command_shows_ranks_effort_and_marks_and_complete_json(registry: Registry, tmp_path: Path) -> None:
    location, home = registry.address, str(tmp_path / "home")
    done = nip_run_here("leaderboard", "--from", location, "code/v1", cwd=tmp_path, XDG_CACHE_HOME=home)
    assert done.returncode == 0, done.stderr
    assert "acme/after@1" in done.stdout
    assert "12 rollouts" in done.stdout
    assert "trained on 12 of its 18 datapoints" in done.stdout
    json_process = nip_run_here("leaderboard", "--from", location, "--json", cwd=tmp_path, XDG_CACHE_HOME=home)
    board = json.loads(json_process.stdout)
    assert board["where"] == location
    assert "self-reported" in done.stdout
    assert "the board replays no journal" in done.stderr
    assert "nip-run verify run/acme/" in done.stderr
    assert {(row["tier"], row["numbers"]) for row in board["rows"]} == {
        ("self-reported", "recomputed from its records")
    }
    assert {"release", "release_sha256", "effort", "trained_on", "lineage", "marks", "rank"} <= board["rows"][0].keys()
    unknown = nip_run_here("leaderboard", "--from", location, "code/v2", cwd=tmp_path, XDG_CACHE_HOME=home)
    assert (unknown.returncode, "no run of benchmark 'code/v2' is published" in unknown.stderr) == (2, True)


def check_board_at(location_kind: str, root: Path, registry_with_cache: Path, results: Path) -> None:
    """Check that a location's board has the same row for a run as the board of a folder."""
    with LOCATIONS[location_kind](root) as location, connect(location) as registry:
        publish(registry, build_release(results, "before"))
        with connect(location) as reopened:
            board = registry_board(reopened, cache=root / "cache")
    (published,) = board.rows
    row = published.to_json()
    assert board.left_out == []
    expected = rows_by_release(
        registry_board(connect(str(registry_with_cache / "registry")), cache=registry_with_cache / "cache")
    )[row["release"]]
    assert {name: row[name] for name in ("release_sha256", "accuracy", "ci_low", "task", "numbers")} == {
        name: expected[name] for name in ("release_sha256", "accuracy", "ci_low", "task", "numbers")
    }


@pytest.mark.full
@pytest.mark.parametrize("location_kind", ["git", *SIMILAR_LOCATIONS])
def test_board_of_a_git_registry_equals_that_of_a_folder(
    location_kind: str, tmp_path: Path, registry_with_cache: Path, trained_results: Path
) -> None:
    check_board_at(location_kind, tmp_path, registry_with_cache, trained_results)


def test_unknown_benchmark_is_a_usage_error(registry: Registry, cache: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'code/v1'"):
        registry_board(registry, "code/v1x", cache)
