"""Invalid shards are refused by name, with all their problems at once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import MergeError, RunDirectoryError
from runner.base.storage.locks import locked
from runner.base.storage.log_lines import encode, log_seed, read_journal
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.shards.checks import check_shards
from runner.runs.shards.merge import merge
from runner.runs.shards.stored_shards import read_shards
from tests.support.runs import only_run, run_spec
from tests.support.shards import all_shards
from tests.support.specs import spec_file

SHARD_COUNT = 3


@dataclass(frozen=True)
class ShardFolders:
    """Folders of a run in shards, which a test may damage, and the run's spec."""

    spec: Path
    run: Path
    elsewhere: Path
    """Folder for the other runs of a test."""

    def part(self, number: int) -> Path:
        return self.run / "shards" / f"{number}-of-{SHARD_COUNT}"

    def play_shard(self, shard: str, *overrides: str) -> Path:
        """Play a shard elsewhere and return its folder."""
        return run_spec(self.spec, self.elsewhere, *overrides, shard=shard).folder.path

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            shutil.rmtree(self.part(number))

    def replace_part(self, part: Path, number: int = 2) -> None:
        """Replace the folder of a shard."""
        shutil.rmtree(self.part(number))
        shutil.copytree(part, self.part(number))

    def problems(self, *extra_folders: Path) -> str:
        """Return the problems that prevent a merge, or an empty string."""
        parts = [part for _, part in RunFolder(self.run).started_parts()]
        try:
            check_shards(self.run.name, *read_shards([*parts, *map(RunFolder, extra_folders)]))
        except MergeError as error:
            return "\n".join(error.problems)
        return ""


@pytest.fixture(scope="module")
def complete_parts(tmp_path_factory: pytest.TempPathFactory) -> ShardFolders:
    folder = tmp_path_factory.mktemp("parts")
    spec = spec_file(folder, size=6, fine_tune=None)
    for shard in all_shards(SHARD_COUNT):
        run_spec(spec, folder / "results", shard=str(shard))
    return ShardFolders(spec, only_run(folder / "results"), folder / "elsewhere")


@pytest.fixture
def parts(complete_parts: ShardFolders, tmp_path: Path) -> ShardFolders:
    run = tmp_path / "results" / "runs" / complete_parts.run.name
    shutil.copytree(complete_parts.run, run)
    return ShardFolders(complete_parts.spec, run, tmp_path / "elsewhere")


def edit_file(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text("utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text, "utf-8")


def change_manifest(part: Path, **fields: Any) -> None:
    """Change fields of a shard's manifest."""
    path = part / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")


def cut_lines(path: Path, lines: int) -> bytes:
    """Remove the last lines of a file and return them."""
    all_lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(all_lines[:-lines]))
    return b"".join(all_lines[-lines:])


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def add_foreign_answer(parts: ShardFolders) -> None:
    """Add a record of another shard with valid checksums."""
    path, other_journal = (parts.part(number) / "journal.jsonl" for number in (2, 1))
    records_before = path.read_bytes().splitlines(keepends=True)
    records = [record for _, record in read_journal(other_journal)]
    seed = log_seed(records_before[0], {"format": 2})
    foreign = {name: value for name, value in records[1].items() if name != "seq"}
    path.write_bytes(b"".join(records_before) + encode(len(records_before), foreign, seed))
    change_manifest(parts.part(2), journal_records=len(records_before) + 1)


def edit_all_specs(parts: ShardFolders) -> None:
    for number in range(1, SHARD_COUNT + 1):
        edit_file(parts.part(number) / "spec.yaml", ("max_response_words: ", "max_response_words: 1"))


Damage = Callable[[ShardFolders], object]

INVALID_SHARDS: dict[str, tuple[Damage, str]] = {
    "missing": (lambda p: p.remove(2), "missing: 2/3; play the missing shards"),
    "two missing": (lambda p: p.remove(1, 3), "missing: 1/3, 3/3; play the missing shards"),
    "in another part's folder": (
        lambda p: p.part(2).rename(p.run / "shards/3-of-4"),
        r"shard 2/3 \(.*\) is in the folder of shard 3/4; rename the folder to 2-of-3",
    ),
    "dataset edited": (
        lambda p: edit_file(p.part(2) / "inputs/dataset.jsonl", ("returns x", "returns y")),
        r"shard 2/3 \(.*has other inputs than most shards: inputs/dataset.jsonl",
    ),
    "prompt edited": (
        lambda p: (p.part(2) / "inputs/prompts/prover.jinja").write_text("Say yes.", "utf-8"),
        r"other inputs than most shards: inputs/prompts/prover.jinja",
    ),
    "protocol edited": (
        lambda p: edit_file(p.part(2) / "inputs/protocol.yaml", ("name: ", "name:  ")),
        r"other inputs than most shards: inputs/protocol.yaml",
    ),
    "an input gone": (
        lambda p: (p.part(2) / "inputs/prompts/prover.jinja").unlink(),
        r"other inputs than most shards: inputs/prompts/prover.jinja",
    ),
    "the specs of all edited": (edit_all_specs, "its spec.yaml or inputs/ were edited after"),
    "spec damaged": (lambda p: (p.part(2) / "spec.yaml").write_text("[", "utf-8"), "its spec cannot be read"),
    "spec gone": (lambda p: (p.part(2) / "spec.yaml").unlink(), "its spec cannot be read"),
    "journal torn": (
        lambda p: append(p.part(2) / "journal.jsonl", b"0123abcd {"),
        r"shard 2/3 \(.*its journal ends in an incomplete line of 10 bytes",
    ),
    "journal cut": (
        lambda p: cut_lines(p.part(2) / "journal.jsonl", 2),
        r"its journal has \d+ records, but had \d+ when the shard ended",
    ),
    "journal damaged": (lambda p: flip_byte(p.part(2) / "journal.jsonl"), "shard 2/3 .* damaged at byte"),
    "journal gone": (lambda p: (p.part(2) / "journal.jsonl").unlink(), "its journal is missing"),
    "journal empty": (lambda p: (p.part(2) / "journal.jsonl").write_bytes(b""), "first record of its journal"),
    "journal of another shard": (
        lambda p: shutil.copy(p.part(1) / "journal.jsonl", p.part(2) / "journal.jsonl"),
        r"shard 2/3 \(.*: its journal belongs to shard 1/3",
    ),
    "an answer to another shard's datapoint": (add_foreign_answer, r"answers for datapoints of other shards \(p0\)"),
    "interrupted": (
        lambda p: change_manifest(p.part(2), status="interrupted"), r"is not finished \(interrupted\); resume it",
    ),
    "killed": (lambda p: change_manifest(p.part(2), status="running"), r"is not finished \(interrupted\); resume it"),
    "failed": (
        lambda p: change_manifest(p.part(2), status="failed", why_stopped="no server"),
        r"is not finished \(failed: no server\)",
    ),
    "games lost": (
        lambda p: change_manifest(p.part(2), status="incomplete", transport_failed=1),
        "1 rollouts were lost in transport, in shard 2/3, but rollouts.max_transport_failed allows only a share of 0",
    ),
    "manifest damaged": (
        lambda p: (p.part(2) / "manifest.json").write_text("{", "utf-8"), "2-of-3 cannot be read as a shard: .*damaged"
    ),
    "manifest of a newer version": (lambda p: change_manifest(p.part(2), format=99), "written by a newer version"),
    "of another seed": (
        lambda p: p.replace_part(p.play_shard("2/3", "seed=8")),
        "another run, .*: these keys differ: seed",
    ),
    "of another play of the spec": (
        lambda p: p.replace_part(run_spec(p.spec, p.elsewhere, shard="2/3", run_id="other").folder.path),
        r"shard 2/3 \(.*\) belongs to other, another run of the same spec",
    ),
    "of an edited spec": (
        lambda p: p.replace_part(p.play_shard("2/3", "agents.prover.max_response_words=7")),
        r"these keys differ: agents\.prover\.max_response_words",
    ),
    "of another number of shards": (
        lambda p: shutil.copytree(p.play_shard("2/4"), p.run / "shards/2-of-4"),
        r"shard 2/4 \(.*\) is one of 4 shards, but most folders belong to a run in 3 shards",
    ),
    "with more plays": (
        lambda p: p.replace_part(p.play_shard("2/3", "rollouts.per_datapoint=2")),
        r"a different spec: rollouts.per_datapoint \(2, elsewhere 1\)",
    ),
    "with other fine-tune files": (
        lambda p: p.replace_part(p.play_shard("2/3", "fine_tune={}")),
        r"a different spec: fine_tune",
    ),
    "journal of another run": (
        lambda p: shutil.copy(p.play_shard("2/3", "seed=9") / "journal.jsonl", p.part(2) / "journal.jsonl"),
        r"shard 2/3 \(.*belongs to another run",
    ),
    "journal of the whole run": (
        lambda p: shutil.copy(
            run_spec(p.spec, p.elsewhere).folder.path / "journal.jsonl", p.part(2) / "journal.jsonl"
        ),
        r"its journal belongs to the whole run",
    ),
    "a line of another play": (
        lambda p: append(p.part(2) / "journal.jsonl", cut_lines(p.play_shard("2/3") / "journal.jsonl", 1)),
        r"damaged at byte",
    ),
    "a whole run": (
        lambda p: p.replace_part(run_spec(p.spec, p.elsewhere).folder.path),
        "2-of-3 is the complete run tiny-.*, not a shard",
    ),
}  # fmt: skip


def test_unchanged_shards_can_be_merged(parts: ShardFolders) -> None:
    assert parts.problems() == ""


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", INVALID_SHARDS)
def test_an_invalid_shard_is_refused_with_the_reason(parts: ShardFolders, case: str) -> None:
    damage, pattern = INVALID_SHARDS[case]
    damage(parts)
    message = parts.problems()
    assert re.search(pattern, message), message
    assert "Traceback" not in message


def test_a_duplicate_shard_is_refused(parts: ShardFolders) -> None:
    copy = parts.elsewhere / "3-of-3"
    shutil.copytree(parts.part(3), copy)
    message = parts.problems(copy)
    assert "shard 3/3 exists 2 times" in message
    assert str(copy) in message


def test_a_running_shard_is_refused(parts: ShardFolders) -> None:
    change_manifest(parts.part(2), status="running")
    with locked(parts.part(2) / ".lock", "it"):
        assert "is still running" in parts.problems()


def test_a_folder_without_a_shard_is_refused(parts: ShardFolders) -> None:
    parts.elsewhere.mkdir()
    assert "elsewhere cannot be read as a shard" in parts.problems(parts.elsewhere)


def test_all_problems_are_reported_at_once_and_no_file_changes(parts: ShardFolders) -> None:
    shutil.rmtree(parts.part(1))
    append(parts.part(2) / "journal.jsonl", b"0")
    edit_file(parts.part(3) / "inputs/dataset.jsonl", ("returns x", "returns y"))
    results = Results(parts.run.parents[1])
    files_before = sorted(path for path in parts.run.rglob("*") if path.name != ".lock")
    with pytest.raises(MergeError) as refused:
        merge(parts.run.name, results)
    message = "\n".join(refused.value.lines())
    for problem in ("missing: 1/3", "incomplete line", "inputs/dataset.jsonl"):
        assert problem in message
    assert sorted(path for path in parts.run.rglob("*") if path.name != ".lock") == files_before
    assert not results.board.path.exists()


@pytest.mark.full
def test_a_missing_answer_with_valid_checksums_is_found_before_the_merge_writes(parts: ShardFolders) -> None:
    journal = parts.part(2) / "journal.jsonl"
    cut_lines(journal, 1)
    change_manifest(parts.part(2), journal_records=len(journal.read_bytes().splitlines()))
    results = Results(parts.run.parents[1])
    with pytest.raises(MergeError, match="1 problem") as refused:
        merge(parts.run.name, results)
    assert "the journal has no answer for" in "\n".join(refused.value.lines())
    assert not (parts.run / "manifest.json").exists()
    assert not (parts.run / ".merging").exists()


@pytest.mark.full
def test_shards_are_not_merged_into_a_run_started_without_shards(parts: ShardFolders) -> None:
    for path in run_spec(parts.spec, parts.elsewhere).folder.path.iterdir():
        if path.is_file():
            shutil.copy(path, parts.run / path.name)
    with pytest.raises(RunDirectoryError, match="was started without --shard"):
        merge(parts.run.name, Results(parts.run.parents[1]))
