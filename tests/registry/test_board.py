"""The leaderboard of a registry: what is published there by task, its numbers made again, damage contained."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from runner.errors import ReleaseError, RunError, UsageError
from runner.registry.board import RegistryBoard, registry_board
from runner.registry.board_cache import BoardCache
from runner.registry.draft import Naming
from runner.registry.fetched import PIN
from runner.registry.left_out import in_words, is_passing
from runner.registry.run_bundle import draft_of
from runner.registry.withheld import MARK
from runner.releases.bundle import Bundle
from runner.results.folder import RunFolder
from runner.results.results import Results
from runner.results.tasks import PlayedDatapoint
from runner.storage.parquet import write_parquet
from runner.transports.base import Stored
from runner.transports.connect import connect
from runner.transports.folder import FolderTransport
from runner.transports.registry import Registry
from tests.registry.planted import publish, published_runs, release_of
from tests.support.processes import nip_run_here
from tests.support.registries import ALIKE, PLACES


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


@pytest.fixture(scope="module")
def looked_at(trained_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with all runs of the small results folder, published by acme, and a cache that has seen it."""
    folder = tmp_path_factory.mktemp("looked at")
    made = Registry(FolderTransport(str(folder / "registry")))
    published_runs(made, trained_results, "acme")
    registry_board(made, cache=folder / "cache")
    return folder


@pytest.fixture
def registry(looked_at: Path, tmp_path: Path) -> Registry:
    """A copy of that registry."""
    shutil.copytree(looked_at / "registry", tmp_path / "registry")
    return Registry(Watched(str(tmp_path / "registry")))


@pytest.fixture
def cache(looked_at: Path, registry: Registry, tmp_path: Path) -> Path:
    """A copy of that cache."""
    (seen,) = (looked_at / "cache").iterdir()
    shutil.copytree(seen, BoardCache.of(registry, tmp_path / "cache").path, dirs_exist_ok=True)
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
    marks = rows["run/acme/learn-t1@1"]["marks"]  # none of its datapoints: it measures on the test split
    assert [mark.partition(":")[0] for mark in marks] == [
        "test of learn, after iteration 0",
        "weights not known",
    ]


def test_a_second_look_reads_nothing_again_but_the_list(registry: Registry, cache: Path, trained_results: Path) -> None:
    watched = registry._transport
    assert isinstance(watched, Watched)
    first = registry_board(registry, cache=cache.with_name("another"))
    cache = cache.with_name("another")
    assert any("rollouts.jsonl" in path for path in watched.opened)
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
    rollouts = bytes(release(trained_results, "before").contents["data/rollouts.jsonl"])
    anew = {"data/rollouts.jsonl": rollouts.replace(b'{"', b'{ "', 1)}
    publish(registry, release(trained_results, "before", owner="third", contents=anew))
    said = {**release(trained_results, "before").release.facts, "replay_of": ["before", None]}
    replay = {"data/rollouts.jsonl": rollouts.replace(b'{"', b'{  "', 1)}
    publish(registry, release(trained_results, "before", owner="replays", contents=replay, facts=said))
    rows = by_release(registry_board(registry, cache=cache))
    assert rows["run/replays/before@1"]["marks"][0] == "a replay of before, in which nobody was asked"  # and no play
    ours, theirs = rows["run/acme/before@1"], rows["run/other/before@1"]
    assert rows["run/third/before@1"]["marks"][0] == "another play of run/acme/before@1"
    assert ours["marks"][1] == "another play of run/third/before@1"
    assert ours["run_id"] == theirs["run_id"] == "before"
    assert ours["accuracy"] == theirs["accuracy"]
    assert ours["rank"] == theirs["rank"]
    assert ours["marks"][0] == "the same rollouts as run/other/before@1"
    assert theirs["marks"][0] == "the same rollouts as run/acme/before@1"


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


def wrong_release(what: str, results: Path, place: Path) -> Bundle:
    """A release of the run `before` that says what cannot be, by another owner."""
    contents, here = release(results, "before").contents, Results(results)
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
    if what in records:
        assert records[what] != rows
        return release(results, "before", what, contents={"data/rollouts.jsonl": records[what]})
    if what in facts:
        return release(results, "before", what, facts=facts[what])
    if what in files:
        return release(results, "before", what, contents=dict([files[what]]))
    if what == "cost":
        return release_of(edited(results, "before", place, "manifest.json", _dear), here, what)
    change = {"forged": _better, "narrow": _narrower}[what]
    return release_of(edited(results, "before", place, "metrics.json", change), here, what)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("forged", "its numbers do not follow from its records: accuracy: value is 0.99"),
        ("flipped", "correct is True, and follows to be False"),
        ("model", "the models that its release says it began with and made are not those of its spec.yaml"),
        ("narrow", "accuracy: ci_low is 0.5, and"),
        ("decisions", ""),
        ("riches", "a game gives nobody more than"),
        ("endless", "rounds cannot be '9223372036854775807'"),
        ("typed", "error cannot be"),
        ("cost", "its manifest says cost_usd 1e+308, which no run comes to"),
        ("fewer", "it has 17 rollouts"),
        ("twice", "it has 19 rollouts"),
        ("doubled", "is not that of game 0 of its spec"),
        ("noise", "not JSON"),
        ("lies", "its release says accuracy 0.9"),
        ("spec", "not those of its spec.yaml"),
        ("empty", "manifest"),
        ("odd", "its facts are not those of a run: trained cannot be '7'"),
    ],
)
def test_what_does_not_follow_from_its_records_is_refused_by_name_and_the_others_stay(
    registry: Registry, cache: Path, trained_results: Path, tmp_path: Path, what: str, why: str
) -> None:
    publish(registry, wrong_release(what, trained_results, tmp_path / what))
    board = registry_board(registry, cache=cache)
    assert len(board.rows) == 3
    assert [name for name, _ in board.left_out] == [f"run/{what}/before@1"]
    assert why in board.left_out[0][1]
    watched = registry._transport
    assert isinstance(watched, Watched)
    watched.opened.clear()
    assert registry_board(registry, cache=cache).left_out == board.left_out
    assert not any("/data/" in path for path in watched.opened)


def without_rows(results: Path, change: Any = lambda rows: rows) -> Bundle:
    """The run `before` as its owner publishes it without the rows of its dataset, with another pin."""
    naming = Naming("shy", licence="MIT", dataset_licence="none")
    made = draft_of(RunFolder(results / "runs" / "before"), Results(results), naming)
    pin = json.loads(bytes(made.contents[PIN]))
    changed = json.dumps({**pin, "rows": change(pin["rows"])}).encode()
    return replace(made, contents={**made.contents, PIN: changed}).bundle()


def test_a_run_without_the_rows_of_its_dataset_ranks_among_the_others_and_is_told_apart(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, without_rows(trained_results))
    board = registry_board(registry, cache=cache)
    assert board.left_out == []
    ours, theirs = (by_release(board)[f"run/{owner}/before@1"] for owner in ("acme", "shy"))
    same = ("task", "list", "rank", "accuracy", "ci_low", "ci_high", "n", "clusters")
    assert [theirs[name] for name in same] == [ours[name] for name in same]
    assert (MARK in theirs["marks"], theirs["numbers"]) == (True, "as published")
    assert MARK not in ours["marks"]


def test_a_withheld_datapoint_has_the_hash_in_its_task_that_its_id_group_label_and_content_come_to() -> None:
    known = PlayedDatapoint("p", "of six", 1, "ab" * 32, {"question": "?"})
    withheld = PlayedDatapoint("p", str(known.group_sha256), 1, "ab" * 32, {}, group_is_hash=True)
    assert withheld.digest == known.digest
    alone = PlayedDatapoint("p", "p", 1, "ab" * 32, {})
    others = [alone, *(replace(withheld, **one) for one in ({"label": 0}, {"group": "cd" * 32}, {"id": "q"}))]
    assert len({one.digest for one in (known, *others)}) == 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:-1], "the datapoints differ"),
        (lambda rows: [{**rows[0], "sha256": "ab" * 32}, *rows[1:]], "the datapoints differ"),
        (lambda rows: [{**row, "group_sha256": "ab" * 32} for row in rows], "does not group its datapoints"),
        (lambda rows: [{**rows[0], "id": "unplayed"}, *rows[1:]], "of 1 of them no rollout has the label"),
        (lambda rows: [{**rows[0], "content_sha256": "x"}, *rows[1:]], "does not say which datapoints"),
        (lambda rows: 7, "does not say which datapoints"),
    ],
    ids=["fewer", "other hash", "other groups", "without label", "no hash", "no rows"],
)
def test_withheld_datapoints_that_are_not_those_of_its_games_are_refused_by_name(
    registry: Registry, cache: Path, trained_results: Path, change: Any, why: str
) -> None:
    publish(registry, without_rows(trained_results, change))
    (left,) = registry_board(registry, cache=cache).left_out
    assert left[0] == "run/shy/before@1"
    assert why in left[1]


def test_any_error_is_told_in_one_line_with_the_paths_of_the_release_but_for_want_of_memory(tmp_path: Path) -> None:
    assert in_words(ZeroDivisionError("x\ny")) == "it says what cannot be (ZeroDivisionError: x)"
    assert in_words(ReleaseError(f"{tmp_path}/spec.yaml:3: no"), tmp_path) == "data/spec.yaml:3: no"
    with pytest.raises(MemoryError):
        in_words(MemoryError())


@pytest.mark.parametrize(
    ("row", "folder", "passing"),
    [('{"y": 1}', "gone", True), ('{"y": "x"}', "", False), ("{", "", False)],
    ids=["no place to write", "a wrong type", "no JSON"],
)
def test_what_this_machine_lacks_is_no_refusal_that_stays(tmp_path: Path, row: str, folder: str, passing: bool) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text(row + "\n")
    with pytest.raises(RunError) as told:
        write_parquet([lines], {"y": "TINYINT"}, tmp_path / folder / "rows.parquet")
    assert is_passing(told.value, tmp_path) is passing


def test_a_file_that_a_release_lacks_is_its_own_fault_and_one_that_cannot_be_read_is_not(tmp_path: Path) -> None:
    lacking, unread = RunError("x"), RunError("x")
    lacking.__cause__ = FileNotFoundError(errno.ENOENT, "", str(tmp_path / "spec.yaml"))
    unread.__cause__ = OSError(errno.EMFILE, "", str(tmp_path / "spec.yaml"))
    assert (is_passing(lacking, tmp_path), is_passing(unread, tmp_path)) == (False, True)


def _better(said: dict[str, Any]) -> None:
    row = next(row for row in said["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    row |= {"value": 0.99, "ci_low": 0.98, "ci_high": 1.0}


def _dear(said: dict[str, Any]) -> None:
    said["cost_usd"] = 1e308


def _narrower(said: dict[str, Any]) -> None:
    row = next(row for row in said["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    row |= {"ci_low": 0.5, "ci_high": 0.5}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "file", ["data/inputs/dataset.jsonl", "data/metrics.json", "data/rollouts.jsonl", "release.json"]
)
def test_a_damaged_release_is_named_and_read_again_once_it_is_whole(
    registry: Registry, cache: Path, trained_results: Path, file: str
) -> None:
    publish(registry, release(trained_results, "before", owner="other"))
    path = Path(registry.where.removeprefix("file:")) / "run/other/before/1" / file
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + b"~\n")
    board = registry_board(registry, cache=cache)
    assert len(board.rows) == 3
    assert [name for name, _ in board.left_out] == ["run/other/before@1"]
    assert Path(file).name in board.left_out[0][1]
    path.write_bytes(whole)
    assert "run/other/before@1" in by_release(registry_board(registry, cache=cache))


def test_a_run_that_trains_is_no_benchmark_whatever_its_release_says(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    publish(registry, release(trained_results, "learn", owner="sly", facts={"kind": "benchmark"}))
    board = registry_board(registry, cache=cache)
    assert [name for name, _ in board.left_out] == ["run/sly/learn@1"]
    assert "is of kind training, and its release says 'benchmark'" in board.left_out[0][1]
    assert all("learn@" not in name for name in by_release(board))


def test_models_that_a_run_did_not_make_by_its_own_stages_are_behind_no_row(
    registry: Registry, cache: Path, trained_results: Path
) -> None:
    made = release(trained_results, "learn", owner="sly")
    told = [
        {**group, "made": [{**one, "weights_sha256": "ab" * 32} for one in group["made"]]}
        for group in made.release.facts["trained"]
    ]
    publish(registry, release(trained_results, "learn", owner="sly", facts={"trained": told}))
    for _ in range(2):
        board = registry_board(registry, cache=cache)
        assert [name for name, _ in board.left_out] == ["run/sly/learn@1"]
        assert "are not those of its spec.yaml and its stages" in board.left_out[0][1]
        assert len(board.rows) == 3


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
    assert "self-reported" in done.stdout
    assert "a board replays no journal" in done.stderr
    assert "nip-run verify run/acme/" in done.stderr
    assert {(row["tier"], row["numbers"]) for row in said["rows"]} == {("self-reported", "recomputed from its records")}
    assert {"release", "release_sha256", "effort", "trained_on", "lineage", "marks", "rank"} <= said["rows"][0].keys()
    wrong = nip_run_here("leaderboard", "--from", where, "code/v2", cwd=tmp_path, XDG_CACHE_HOME=home)
    assert (wrong.returncode, "no benchmark 'code/v2' is published" in wrong.stderr) == (2, True)


def board_at(place: str, root: Path, looked_at: Path, results: Path) -> None:
    """The board of a place with one run of the registry of a folder is that folder's board of this run."""
    with PLACES[place](root) as where, connect(where) as registry:
        publish(registry, release(results, "before"))
        with connect(where) as again:
            board = registry_board(again, cache=root / "cache")
    (row,) = board.rows
    assert board.left_out == []
    theirs = by_release(registry_board(connect(str(looked_at / "registry")), cache=looked_at / "cache"))[row["release"]]
    assert {name: row[name] for name in ("release_sha256", "accuracy", "ci_low", "task", "numbers")} == {
        name: theirs[name] for name in ("release_sha256", "accuracy", "ci_low", "task", "numbers")
    }


@pytest.mark.full
@pytest.mark.parametrize("place", ["git", *ALIKE])
def test_the_board_of_a_repository_is_that_of_a_folder(
    place: str, tmp_path: Path, looked_at: Path, trained_results: Path
) -> None:
    board_at(place, tmp_path, looked_at, trained_results)


def test_an_unknown_benchmark_is_a_mistake_of_the_user(registry: Registry, cache: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'code/v1'"):
        registry_board(registry, "code/v1x", cache)
