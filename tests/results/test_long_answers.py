"""Tables of long answers: whole, in order, and made in memory that their size does not decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.base.storage.format_versions import LEADERBOARD
from runner.base.storage.parquet import TEMPORARY_NAME
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Message, Round
from runner.results.table_columns import COLUMNS
from runner.results.tables import PART_ROWS, PartFiles, encode_rows
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, Outcome, Rollout
from runner.spec.datasets.loader import Datapoint
from tests.support.files import parquet_rows
from tests.support.processes import nip_run_here, python
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def rollout(index: int, *texts: str, error: str | None = None) -> Rollout:
    """A game in which one agent said these texts."""
    job = Job(index, f"{index:032x}", Datapoint(f"p{index}", index % 2, {}), 0, index)
    rounds = [Round({"prover": text}, [Message("main", "prover", text)]) for text in texts]
    calls = [Call(round_, "prover", 0, "m", "stop", text, latency_ms=1.5) for round_, text in enumerate(texts)]
    return Rollout(job, rounds, Decision.ACCEPT, Outcome.DECIDED, None, {"prover": 0.5}, calls, error)


def sealed(folder: Path, rollouts: Iterator[Rollout]) -> dict[str, list[dict[str, Any]]]:
    parts = PartFiles(folder)
    for one in rollouts:
        parts.add(encode_rows("run", one))
    parts.seal()
    return {name: parquet_rows(folder / f"{name}.parquet") for name in COLUMNS}


IN_LITTLE_MEMORY = """
import random, resource, sys
from pathlib import Path
from tests.results.test_long_answers import rollout
from runner.results.tables import PartFiles, encode_rows

def data():
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmData"].split()[0]) * 1024

parts, rng = PartFiles(Path(sys.argv[1])), random.Random(1)
for index in range(40):
    parts.add(encode_rows("run", rollout(index, *(rng.randbytes(30_000).hex() for _ in range(50)))))
limit = data() + (160 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
parts.seal()
"""
"""120 MB in answers of 60,000 characters, with 160 MB more than before to seal them in."""


@pytest.mark.full
def test_long_answers_are_sealed_in_less_memory_than_they_have(tmp_path: Path) -> None:
    done = python(IN_LITTLE_MEMORY, tmp_path)
    assert done.returncode == 0, done.stderr
    with duckdb.connect(":memory:") as connection:
        for name in ("messages", "completions"):
            table = f"read_parquet('{tmp_path / name}.parquet', file_row_number=true)"
            order = f"SELECT count(*), bool_and(rollout_id = printf('%032x', file_row_number // 50)) FROM {table}"
            assert connection.execute(order).fetchall() == [(2000, True)]
            groups = f"SELECT max(row_group_bytes) FROM parquet_metadata('{tmp_path / name}.parquet')"
            ((largest,),) = connection.execute(groups).fetchall()
            assert largest < 32 << 20


@pytest.mark.gate
def test_unsealed_rows_stand_in_files_of_a_bounded_size(tmp_path: Path) -> None:
    parts = PartFiles(tmp_path)
    for index, length in enumerate((3_000_000, 6_000_000, 20_000_000, *[1] * (2 * PART_ROWS + 1_000))):
        parts.add(encode_rows("run", rollout(index, "x" * length)))
    parts.close()
    sizes = {path.name: path.stat().st_size for path in sorted(parts.folder.glob("messages.*"))}
    assert [size // 1_000_000 for size in sizes.values()] == [3, 6, 20, 0, 0, 0]
    assert len(list(parts.folder.glob("rollouts.*"))) == 3


HUGE = {
    "plain": "x" * (32 << 20),
    "all escaped": "\x01" * (6 << 20),
    "three bytes each": "\ufffd" * (12 << 20),
}
"""Texts whose line of JSON is longer than the 32 MiB of the buffer that DuckDB has unasked."""


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HUGE)
def test_one_huge_answer_among_short_ones_is_sealed_whole(tmp_path: Path, name: str) -> None:
    texts = ["a", HUGE[name], "b"]
    found = sealed(tmp_path, iter([rollout(0, *texts), rollout(1, "c"), rollout(2, HUGE[name])]))
    said = [*texts, "c", HUGE[name]]
    assert [row["content"] == text for row, text in zip(found["messages"], said, strict=True)] == [True] * 5
    assert [row["raw_message"] == text for row, text in zip(found["completions"], said, strict=True)] == [True] * 5


@pytest.mark.full
def test_rows_of_many_parts_have_the_order_types_and_texts_that_they_had(tmp_path: Path) -> None:
    """NUL, quotes, line ends and what is beyond the basic plane; parts of a few long rows and of many short ones."""
    strange = ["", "\0", 'a"b\\c\n\r\t', "\U0001f600\u2028", "\x7f\x1b[31m", "{}", "null"]
    texts = [strange[index % 7] + ("y" * 3_000_000 if index % 50 == 0 else "") for index in range(700)]
    texts += [f"{index}" for index in range(12_000)]
    found = sealed(tmp_path, (rollout(index, text) for index, text in enumerate(texts)))
    assert [row["content"] for row in found["messages"]] == texts
    assert [row["raw_message"] for row in found["completions"]] == texts
    assert [row["datapoint_id"] for row in found["rollouts"]] == [f"p{index}" for index in range(len(texts))]
    assert json.loads(found["rollouts"][0]["rewards"]) == {"prover": 0.5}
    with duckdb.connect(":memory:") as connection:
        for name, columns in COLUMNS.items():
            described = connection.execute(f"DESCRIBE FROM read_parquet('{tmp_path / name}.parquet')").fetchall()
            stored = {column: "VARCHAR" if kind == "JSON" else kind for column, kind in columns.items()}
            assert {row[0]: row[1] for row in described} == stored


@pytest.mark.full
def test_a_run_whose_tables_could_not_be_made_seals_on_the_next_try(tmp_path: Path) -> None:
    """As the journals stand that an earlier version paid for and could not finish."""
    with run_chat_server(length=60_000) as server:
        path = spec_file(tmp_path, server.base_url, size=8)
        whole = run_spec(path, tmp_path / "results").folder.path
        wanted, asked = derived_files(whole), server.requests
        for name in COLUMNS:
            (whole / f"{name}.parquet").unlink()
        (whole / "metrics.json").unlink()
        (whole / ".parts").mkdir()
        (whole / ".parts" / "messages.00000.jsonl").write_text("half a li")
        (whole / TEMPORARY_NAME).write_bytes(b"PAR1")
        manifest = json.loads((whole / "manifest.json").read_text())
        (whole / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))
        done = nip_run_here(path, "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert server.requests == asked
    assert derived_files(whole) == wanted
    assert not (whole / ".parts").exists()
    assert not list(whole.glob("*.new"))


def test_no_call_is_made_where_the_disk_has_no_room_for_the_answers(tmp_path: Path) -> None:
    with run_chat_server() as server:
        words = {"max_response_words": 10**15}
        spec_file(tmp_path, server.base_url, size=2, agents={"prover": words, "verifier": words})
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert (done.returncode, server.requests) == (1, 0)
    assert "not enough space in results/runs/" in done.stderr
    assert "Resume with: nip-run" in done.stderr


def test_room_is_not_asked_for_where_nothing_is_paid(tmp_path: Path) -> None:
    words = {"max_response_words": 10**15}
    spec_file(tmp_path, size=2, agents={"prover": words, "verifier": words})
    assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0


def test_no_call_is_made_where_a_newer_version_has_the_board(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with duckdb.connect(str(tmp_path / "results" / "leaderboard.duckdb")) as connection:
        connection.execute(f"CREATE TABLE format AS SELECT {LEADERBOARD + 1} AS version")
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert (done.returncode, server.requests) == (1, 0)
    assert "was written by a newer version of nip-run" in done.stderr


@pytest.mark.full
def test_a_board_takes_errors_as_long_as_answers(tmp_path: Path) -> None:
    """A refusal is kept whole as a rollout's error, and is as long as the server likes."""
    with run_chat_server(kind="refusal") as server:
        run_spec(spec_file(tmp_path, server.base_url, size=4, protocol={"max_message_rounds": 2}), tmp_path / "results")
    run = only_run(tmp_path / "results")
    refusal = "no " * (6 << 20)
    sealed(run, (rollout(index, "a", error=refusal) for index in range(4)))
    (run / "SHA256SUMS").unlink()  # the tables are not those that the run wrote
    done = nip_run_here("leaderboard", "--rebuild", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with duckdb.connect(str(tmp_path / "results" / "leaderboard.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT count(*), min(error) = max(error), min(length(error)) FROM rollouts")
        assert found.fetchall() == [(4, True, len(refusal))]
