"""Copy the files that 0.1.0 wrote, run the command line on them, and compare files.

The tests use only the command line, and read files without the code of nip-run.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import runpy
import shutil
import sys
import zlib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "v0_1_0"
FIXTURE_INFO = json.loads((FIXTURES / "made.json").read_text("utf-8"))
RUNS = FIXTURE_INFO["runs"]
"""The id of each run, by the name of its spec."""

RENAMED_KEY_NOTICE = ": 'rollouts.most_calls' is now 'rollouts.max_calls'"
"""End of the notice about a renamed key."""

TABLES = ("rollouts", "messages", "completions")


def copy_old_files(folder: Path) -> Path:
    """Copy the specs, the results and the cache to a folder, because no test may change the fixtures."""
    for name in ("specs", "results"):
        shutil.copytree(FIXTURES / name, folder / name)
    shutil.copyfile(FIXTURES / "cache.sqlite", folder / "cache.sqlite")
    compressed_leaderboard = folder / "results" / "leaderboard.duckdb.gz"
    compressed_leaderboard.with_suffix("").write_bytes(gzip.decompress(compressed_leaderboard.read_bytes()))
    compressed_leaderboard.unlink()
    return folder


def run_folder(folder: Path, name: str, results: str = "results") -> Path:
    """Return the run folder of a spec."""
    return folder / results / "runs" / str(RUNS[name])


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def run_command(*arguments: str, cwd: Path) -> CommandResult:
    """Run `python -m runner` in this process, which is faster than a new one."""
    out, err = io.StringIO(), io.StringIO()
    previous_folder, previous_argv = Path.cwd(), sys.argv
    os.chdir(cwd)
    sys.argv = ["nip-run", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                runpy.run_module("runner", run_name="__main__")
                code: Any = 0
            except SystemExit as error:
                code = error.code
    finally:
        sys.argv = previous_argv
        os.chdir(previous_folder)
    return CommandResult(code, out.getvalue(), err.getvalue())


def hash_files(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, except lock files, which contain the name of their holder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("lock")
    }


ADDED_COLUMNS = (
    "reasoning", "verdict_logprobs", "vote", "swapped", "confidence_stated", "confidence_logprob", "confidence_note",
    "votes", "verdicts", "stances_exchanged", "panel", "cache_write_tokens", "reasoning_tokens", "audio_input_tokens",
    "audio_output_tokens", "service_tier", "usage_estimated", "selected", "score", "words", "removed_words",
    "verified_quotes", "unverified_quotes", "over_limit_quotes", "quoted_words", "answer", "right_answers",
    "answer_order", "argued_answers", "answer_scores", "p_right", "answer_brier",
    "judged_text", "statements", "plugin_metrics",
)  # fmt: skip
"""Columns that 0.1.0 did not have. They are null in its rows."""


def read_table(path: Path, *excluded: str) -> tuple[list[tuple[str, Any]], list[tuple[Any, ...]]]:
    """Return the columns of a Parquet file with their types, and its rows in order, without columns newer than 0.1.0.

    JSON columns are string columns since then, with the same text.
    """
    with duckdb.connect(":memory:") as connection:
        described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
        added_columns = [name for name, *_ in described if name in ADDED_COLUMNS]
        for name in added_columns:
            assert connection.execute(f"SELECT count({name}) FROM read_parquet('{path}')").fetchall() == [(0,)]
        exclude_clause = f"EXCLUDE ({', '.join([*excluded, *added_columns])})" if excluded or added_columns else ""
        cursor = connection.execute(f"SELECT * {exclude_clause} FROM read_parquet('{path}')")
        columns = [(name, str(kind).replace("JSON", "VARCHAR")) for name, kind, *_ in cursor.description or ()]
        return columns, cursor.fetchall()


FILES_WITH_ADDED_COLUMNS = ("rollouts.parquet", "completions.parquet", "messages.parquet")
"""Tables with columns newer than 0.1.0."""


def has_same_content(left: Path, right: Path) -> bool:
    """Return whether two files are equal. Parquet files of different DuckDB versions are compared by rows."""
    if left.name == "metrics.json":
        return read_comparable_metrics(left) == read_comparable_metrics(right)
    if left.suffix == ".parquet" and (
        FIXTURE_INFO["duckdb"] != duckdb.__version__ or left.name in FILES_WITH_ADDED_COLUMNS
    ):
        return read_table(left) == read_table(right)
    return left.read_bytes() == right.read_bytes()


ADDED_TO_METRICS = ("methods", "monitor_curves", "reliability_curves", "vote_curve")
ADDED_METRICS = (
    "balanced_accuracy", "sensitivity", "criterion", "completeness", "soundness_error", "undecided_0", "undecided_1",
    "always_failed", "majority_accuracy", "pair_score",
)  # fmt: skip
"""Metrics that 0.1.0 did not compute."""


def read_comparable_metrics(path: Path) -> str:
    """Return the content of `metrics.json` in its order, without the values that are computed differently since 0.1.0.

    - `retry_proportion` is named `retries_per_round`, with the same numbers.
    - `token_limit_proportion` is computed over messages: only its value is compared.
    - Standard deviations of trees are computed over all rounds of all trees: they are removed.
    - `calls_per_message` includes turns that a failure interrupted: it is compared only if no game failed.
    - Intervals are compared for accuracy only. Others use a different method, or are null if their coverage is poor.
    """
    document = read_json(path)
    for name in (*ADDED_TO_METRICS, "variance"):
        document.pop(name, None)
    document["metrics"] = [row for row in document["metrics"] if row["metric"] not in ADDED_METRICS]
    cut_off = any(document["outcomes"].get(name) for name in ("invalid_response", "refused", "context_exceeded"))
    for row in document["metrics"]:
        row.pop("reason", None)
        if row["metric"] == "worst_datapoint_accuracy":  # a number since, where there are repeats enough
            del row["value"]
        if row["metric"] != "accuracy":
            del row["ci_low"], row["ci_high"]
        row["metric"] = {"retry_proportion": "retries_per_round"}.get(row["metric"], row["metric"])
        if row["metric"] == "token_limit_proportion":
            for name in ("stderr", "n", "clusters"):
                del row[name]
        if row["metric"] == "calls_per_message" and cut_off:
            for name in ("value", "stderr", "n", "clusters"):
                del row[name]
    for name in [name for name in document.get("original_statistics", ()) if name.endswith(TREE_DEVIATIONS)]:
        del document["original_statistics"][name]
    return json.dumps(document)


TREE_DEVIATIONS = (".std_expected_reward", ".std_is_positive_example", ".std_has_positive_and_negative")


def find_different_files(left: Path, right: Path) -> list[str]:
    """Return the files that differ between two folders, or exist in only one.

    Fine-tune files are compared with `has_same_training_examples`.
    """
    names = {str(p.relative_to(root)) for root in (left, right) for p in root.rglob("*") if p.is_file()}
    return sorted(
        name
        for name in names
        if not ((left / name).is_file() and (right / name).is_file() and has_same_content(left / name, right / name))
        and not any(
            has_same_training_examples(*pair) for pair in ((left / name, right / name), (right / name, left / name))
        )
    )


# 0.1.0 wrote fine-tune files in a chat format of their own: the instructions of an agent's first turn preceded all of
# its turns, and files for TRL and verl had the senders in the text. Newer versions write the chats as they were played.


def has_same_training_examples(old: Path, new: Path) -> bool:
    """Return whether a new fine-tune file, trace or report contains all examples of an old one, in any chat format."""
    if not (old.is_file() and new.is_file()):
        return False
    if old.name == "report.json":
        pairs = zip(read_json(old), read_json(new), strict=True)
        return all((old_row["file"], old_row["written"]) == (row["file"], row["written"]) for old_row, row in pairs)
    data, index = old.name.removesuffix(".trace.jsonl"), 0 if old.name.endswith(".trace.jsonl") else 1
    if data.endswith((".sft.jsonl", ".sft.trl.jsonl")):
        return read_games_and_answers(old)[index] <= read_games_and_answers(new)[index]
    if data.endswith((".dpo.trl.jsonl", ".rl.parquet")):
        pairs = zip(read_prompts(old), read_prompts(new), strict=True)
        return all(
            old_line == new_line and has_same_texts(new_chat, old_chat)
            for (old_chat, old_line), (new_chat, new_line) in pairs
        )
    return False


def has_same_texts(chat: list[dict[str, Any]], old_chat: list[dict[str, Any]]) -> bool:
    """Return whether a new chat has the texts of an old one, which has the senders in the text, in the same order."""
    texts = [f"{message.get('name')}: " * bool(message.get("name")) + message["content"] for message in chat]
    return "\n\n".join(texts) == "\n\n".join(message["content"] for message in old_chat)


def read_prompts(path: Path) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Return the prompt of each line, and the rest of the line."""
    if path.suffix == ".parquet":
        columns, parquet_rows = read_table(path)
        lines = [dict(zip((name for name, _ in columns), row, strict=True)) for row in parquet_rows]
    else:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [(line.pop("prompt"), line) for line in lines]


def read_games_and_answers(path: Path) -> tuple[set[str], set[str]]:
    """Return the games and the trained answers in a supervised file or its trace."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    games = {line["rollout_id"] for line in lines if "rollout_id" in line}
    messages = (m for line in lines for m in (*line.get("messages", ()), *line.get("completion", ())))
    return games, {m["content"] for m in messages if m["role"] == "assistant" and m.get("weight") != 0}


def find_different_results(left: Path, right: Path, *tables: str) -> list[str]:
    """Return the files derived from answers that differ between two runs."""
    names = [*(f"{table}.parquet" for table in tables or TABLES), "metrics.json"]
    differences = [name for name in names if not has_same_content(left / name, right / name)]
    folders = [left / "fine_tune", right / "fine_tune"]
    return [*differences, *(find_different_files(*folders) if any(path.is_dir() for path in folders) else [])]


def read_journal(run: Path, name: str = "journal.jsonl") -> list[dict[str, Any]]:
    """Return the records of an undamaged journal. From format 2, every checksum starts from the first one."""
    records: list[dict[str, Any]] = []
    seed = 0
    for line in (run / name).read_bytes().splitlines(keepends=True):
        assert line.endswith(b"\n")
        assert int(line[:8], 16) == zlib.crc32(line[9:-1], seed)
        records.append(json.loads(line[9:]))
        if len(records) == 1 and records[0].get("format", 0) >= 2:
            seed = int(line[:8], 16)
    return records


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def contains(new: Any, old: Any) -> bool:
    """Return whether `new` equals `old`, except that mappings may have more keys."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and contains(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(contains, new, old))
    return bool(new == old)


ADDED_SPEC_KEYS = (
    "      from_scratch: null\n",  # of each trainer
    "      files: null\n",
    "      load_lora: false\n",
    "  chat_format: null\n",
    "  breaker:\n    failures: 16\n    probes: 7\n",
    "  limits:\n    bytes: 268435456\n    rows: 1000000\n",
    "    columns: 1000\n    seconds: 60.0\n    memory: 2147483648\n",
    "max_sweep_points: 1000\n",
    "    selector: null\n    train_scratchpad: false\n",  # of each agent
    "  checker: null\n",
    "  max_depth: 1\n  max_claims: 4\n",
    "  max_transport_failed: 0.0\n",
    "  max_unusable: null\n",
    "    chat_format: openai\n",
    "    headers: null\n    session_id: null\n",
    "    answer_words: null\n",
    "    constrain_decisions: null\n    max_reasoning_length: null\n",
    "    service_tier: null\n    prompt_cache_key: null\n",
    "    from_run: null\n    from_group: null\n",
    "  rerun_tests: null\n",
    "    logprobs: null\n    top_logprobs: null\n",
    "  answers: null\n  right_answers: auto\n",
    "  labels: {}\n  ids: column\n  explode: null\n",
    "  transform: []\n",
    "  transcripts: null\n",
    "  group_by: null\n",
    "  unique_by: []\n",
    "stances: null\n",
    "seats: null\n",
    '  confidence: "Confidence:"\n',
    "verdict:\n  confidence: null\n  form: answer\n",
    "  shuffle_answers: true\n",
    "until: null\n",
    "tournament: null\n",
    "votes: 1\nrejudge: null\nanalysis: null\n",
    "metrics: []\n",
    "      weights_sha256: null\n      release: null\n      release_sha256: null\n",  # of each step of a lineage
    "  from: null\n",
    "      cache_write: null\n      reasoning: null\n      audio_input: null\n      audio_output: null\n",  # of a price
)
"""Parts of a saved spec that 0.1.0 did not write: newer keys, with the values that match its behavior."""


def remove_new_keys(spec: Path) -> str:
    """Return a saved spec without the keys that are newer than 0.1.0."""
    text = spec.read_text("utf-8")
    for block in ADDED_SPEC_KEYS:
        text = text.replace(block, "")
    return text


def rename_old_keys(spec: Path) -> str:
    """Return a saved spec of 0.1.0 with the current names of renamed keys."""
    text = spec.read_text("utf-8")
    assert text.count("  most_calls: ") == 1
    return text.replace("  most_calls: ", "  max_calls: ")
