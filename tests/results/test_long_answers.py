"""Tables of long answers: complete, in order, and written with bounded memory."""

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
    """Return a game in which one agent sends these texts."""
    job = Job(index, f"{index:032x}", Datapoint(f"p{index}", index % 2, {}), 0, index)
    rounds = [Round({"prover": text}, [Message("main", "prover", text)]) for text in texts]
    calls = [Call(round_, "prover", 0, "m", "stop", text, latency_ms=1.5) for round_, text in enumerate(texts)]
    return Rollout(job, rounds, Decision.ACCEPT, Outcome.DECIDED, None, {"prover": 0.5}, calls, error)


def seal_rollouts(folder: Path, rollouts: Iterator[Rollout]) -> dict[str, list[dict[str, Any]]]:
    parts = PartFiles(folder)
    for game in rollouts:
        parts.add(encode_rows("run", game))
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
"""Seal 120 MB of answers of 60,000 characters with at most 160 MB of additional memory."""


@pytest.mark.full
def test_long_answers_are_sealed_in_bounded_memory(tmp_path: Path) -> None:
    process = python(IN_LITTLE_MEMORY, tmp_path)
    assert process.returncode == 0, process.stderr
    with duckdb.connect(":memory:") as connection:
        for name in ("messages", "completions"):
            table = f"read_parquet('{tmp_path / name}.parquet', file_row_number=true)"
            order = f"SELECT count(*), bool_and(rollout_id = printf('%032x', file_row_number // 50)) FROM {table}"
            assert connection.execute(order).fetchall() == [(2000, True)]
            groups = f"SELECT max(row_group_bytes) FROM parquet_metadata('{tmp_path / name}.parquet')"
            ((largest,),) = connection.execute(groups).fetchall()
            assert largest < 32 << 20


@pytest.mark.gate
def test_unsealed_rows_are_split_into_files_of_bounded_size(tmp_path: Path) -> None:
    parts = PartFiles(tmp_path)
    for index, length in enumerate((3_000_000, 6_000_000, 20_000_000, *[1] * (2 * PART_ROWS + 1_000))):
        parts.add(encode_rows("run", rollout(index, "x" * length)))
    parts.close()
    sizes = {path.name: path.stat().st_size for path in sorted(parts.folder.glob("messages.*"))}
    assert [size // 1_000_000 for size in sizes.values()] == [3, 6, 20, 0, 0, 0]
    assert len(list(parts.folder.glob("rollouts.*"))) == 3


HUGE_TEXTS = {
    "plain": "x" * (32 << 20),
    "all escaped": "\x01" * (6 << 20),
    "three bytes each": "\ufffd" * (12 << 20),
}
"""Texts whose JSON line exceeds DuckDB's default buffer of 32 MiB."""


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", HUGE_TEXTS)
def test_huge_answer_among_short_ones_is_stored_completely(tmp_path: Path, name: str) -> None:
    texts = ["a", HUGE_TEXTS[name], "b"]
    tables = seal_rollouts(tmp_path, iter([rollout(0, *texts), rollout(1, "c"), rollout(2, HUGE_TEXTS[name])]))
    expected = [*texts, "c", HUGE_TEXTS[name]]
    assert [row["content"] == text for row, text in zip(tables["messages"], expected, strict=True)] == [True] * 5
    assert [row["raw_message"] == text for row, text in zip(tables["completions"], expected, strict=True)] == [True] * 5


@pytest.mark.full
def test_sealed_rows_of_many_parts_keep_their_order_types_and_texts(tmp_path: Path) -> None:
    """The texts include NUL, quotes, line ends and emoji; the parts have few long or many short rows."""
    strange = ["", "\0", 'a"b\\c\n\r\t', "\U0001f600\u2028", "\x7f\x1b[31m", "{}", "null"]
    texts = [strange[index % 7] + ("y" * 3_000_000 if index % 50 == 0 else "") for index in range(700)]
    texts += [f"{index}" for index in range(12_000)]
    tables = seal_rollouts(tmp_path, (rollout(index, text) for index, text in enumerate(texts)))
    assert [row["content"] for row in tables["messages"]] == texts
    assert [row["raw_message"] for row in tables["completions"]] == texts
    assert [row["datapoint_id"] for row in tables["rollouts"]] == [f"p{index}" for index in range(len(texts))]
    assert json.loads(tables["rollouts"][0]["rewards"]) == {"prover": 0.5}
    with duckdb.connect(":memory:") as connection:
        for name, columns in COLUMNS.items():
            described = connection.execute(f"DESCRIBE FROM read_parquet('{tmp_path / name}.parquet')").fetchall()
            stored = {column: "VARCHAR" if kind == "JSON" else kind for column, kind in columns.items()}
            assert {row[0]: row[1] for row in described} == stored


@pytest.mark.full
def test_run_whose_tables_were_not_written_is_sealed_on_resume(tmp_path: Path) -> None:
    """Earlier versions left such runs behind, with all calls paid."""
    with run_chat_server(length=60_000) as server:
        path = spec_file(tmp_path, server.base_url, size=8)
        run_folder = run_spec(path, tmp_path / "results").folder.path
        expected, requests = derived_files(run_folder), server.requests
        for name in COLUMNS:
            (run_folder / f"{name}.parquet").unlink()
        (run_folder / "metrics.json").unlink()
        (run_folder / ".parts").mkdir()
        (run_folder / ".parts" / "messages.00000.jsonl").write_text("half a li")
        (run_folder / TEMPORARY_NAME).write_bytes(b"PAR1")
        manifest = json.loads((run_folder / "manifest.json").read_text())
        (run_folder / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))
        process = nip_run_here(path, "-q", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        assert server.requests == requests
    assert derived_files(run_folder) == expected
    assert not (run_folder / ".parts").exists()
    assert not list(run_folder.glob("*.new"))


def test_no_call_is_made_if_the_disk_lacks_space_for_the_answers(tmp_path: Path) -> None:
    with run_chat_server() as server:
        agent_settings = {"max_response_words": 10**15}
        spec_file(tmp_path, server.base_url, size=2, agents={"prover": agent_settings, "verifier": agent_settings})
        process = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert (process.returncode, server.requests) == (1, 0)
    assert "not enough space in results/runs/" in process.stderr
    assert "Resume with: nip-run" in process.stderr


def test_disk_space_is_not_checked_for_free_models(tmp_path: Path) -> None:
    agent_settings = {"max_response_words": 10**15}
    spec_file(tmp_path, size=2, agents={"prover": agent_settings, "verifier": agent_settings})
    assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0


def test_no_call_is_made_if_a_newer_version_wrote_the_leaderboard(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with duckdb.connect(str(tmp_path / "results" / "leaderboard.duckdb")) as connection:
        connection.execute(f"CREATE TABLE format AS SELECT {LEADERBOARD + 1} AS version")
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2)
        process = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert (process.returncode, server.requests) == (1, 0)
    assert "was written by a newer version of nip-run" in process.stderr


@pytest.mark.full
def test_leaderboard_accepts_very_long_errors(tmp_path: Path) -> None:
    """The error of a rollout is the complete refusal, and the server decides its length."""
    with run_chat_server(kind="refusal") as server:
        run_spec(spec_file(tmp_path, server.base_url, size=4, protocol={"max_message_rounds": 2}), tmp_path / "results")
    run = only_run(tmp_path / "results")
    refusal = "no " * (6 << 20)
    seal_rollouts(run, (rollout(index, "a", error=refusal) for index in range(4)))
    (run / "SHA256SUMS").unlink()  # the tables differ from those that the run wrote
    process = nip_run_here("leaderboard", "--rebuild", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    with duckdb.connect(str(tmp_path / "results" / "leaderboard.duckdb"), read_only=True) as connection:
        cursor = connection.execute("SELECT count(*), min(error) = max(error), min(length(error)) FROM rollouts")
        assert cursor.fetchall() == [(4, True, len(refusal))]
