"""What 0.1.0 wrote, in a folder of a test's own; the command line on it; and how its files are compared.

Only the command line is used, and files are read by other readers than the program's own.
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
MADE = json.loads((FIXTURES / "made.json").read_text("utf-8"))
RUNS = MADE["runs"]
"""The id of each run, by the name of its spec."""

RENAMED = ": 'rollouts.most_calls' is now 'rollouts.max_calls'"
"""How the note on a key ends that has another name since."""

TABLES = ("rollouts", "messages", "completions")


def opened(folder: Path) -> Path:
    """A copy of the specs, the results and the cache; what others may read, no test writes to."""
    for name in ("specs", "results"):
        shutil.copytree(FIXTURES / name, folder / name)
    shutil.copyfile(FIXTURES / "cache.sqlite", folder / "cache.sqlite")
    packed = folder / "results" / "leaderboard.duckdb.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return folder


def run_folder(folder: Path, name: str, results: str = "results") -> Path:
    """The folder of the run of a spec."""
    return folder / results / "runs" / str(RUNS[name])


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def called(*words: str, cwd: Path) -> Called:
    """`python -m runner` in this process, which saves starting one."""
    out, err = io.StringIO(), io.StringIO()
    before, arguments = Path.cwd(), sys.argv
    os.chdir(cwd)
    sys.argv = ["nip-run", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                runpy.run_module("runner", run_name="__main__")
                code: Any = 0
            except SystemExit as end:
                code = end.code
    finally:
        sys.argv = arguments
        os.chdir(before)
    return Called(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder but locks, in which whoever holds one writes its name."""
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
"""Columns of the tables that 0.1.0 did not have: null for all that it kept."""


def rows(path: Path, *without: str) -> tuple[list[tuple[str, Any]], list[tuple[Any, ...]]]:
    """The columns of a Parquet file with their types, and its rows in their order, without columns that came since.

    A column of JSON is a string now, with the same text.
    """
    with duckdb.connect(":memory:") as connection:
        every = connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
        since = [name for name, *_ in every if name in ADDED_COLUMNS]
        for name in since:
            assert connection.execute(f"SELECT count({name}) FROM read_parquet('{path}')").fetchall() == [(0,)]
        left_out = f"EXCLUDE ({', '.join([*without, *since])})" if without or since else ""
        found = connection.execute(f"SELECT * {left_out} FROM read_parquet('{path}')")
        columns = [(name, str(kind).replace("JSON", "VARCHAR")) for name, kind, *_ in found.description or ()]
        return columns, found.fetchall()


HAVE_MORE = ("rollouts.parquet", "completions.parquet", "messages.parquet")
"""Tables with columns that 0.1.0 did not have."""


def same_file(one: Path, other: Path) -> bool:
    """Whether two files are the same: of Parquet the rows, and the bytes too where one DuckDB has written both."""
    if one.name == "metrics.json":
        return metrics(one) == metrics(other)
    if one.suffix == ".parquet" and (MADE["duckdb"] != duckdb.__version__ or one.name in HAVE_MORE):
        return rows(one) == rows(other)
    return one.read_bytes() == other.read_bytes()


ADDED_TO_METRICS = ("methods", "monitor_curves", "reliability_curves", "vote_curve")
ADDED_METRICS = (
    "balanced_accuracy", "sensitivity", "criterion", "completeness", "soundness_error", "undecided_0", "undecided_1",
    "always_failed", "majority_accuracy", "pair_score",
)  # fmt: skip
"""What 0.1.0 did not count."""


def metrics(path: Path) -> str:
    """What `metrics.json` says, in its order, but for what is counted otherwise since 0.1.0.

    `retry_proportion` among our own metrics is `retries_per_round`, with its numbers; of `token_limit_proportion`,
    which is over messages since, the value alone is compared; the deviations of trees are over all rounds of all trees.
    `calls_per_message` counts the turns that a failure cut off, and is compared where no game has one. Of all metrics
    but accuracy the interval is left out: it is NULL since where its coverage is poor or unknown, and of rewards and
    decisions that of a share; their values, errors and counts are compared.
    """
    told = read_json(path)
    for name in (*ADDED_TO_METRICS, "variance"):
        told.pop(name, None)
    told["metrics"] = [row for row in told["metrics"] if row["metric"] not in ADDED_METRICS]
    cut_off = any(told["outcomes"].get(name) for name in ("invalid_response", "refused", "context_exceeded"))
    for row in told["metrics"]:
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
    for name in [name for name in told.get("original_statistics", ()) if name.endswith(TREE_DEVIATIONS)]:
        del told["original_statistics"][name]
    return json.dumps(told)


TREE_DEVIATIONS = (".std_expected_reward", ".std_is_positive_example", ".std_has_positive_and_negative")


def differing(one: Path, other: Path) -> list[str]:
    """The files of two folders that are not the same, or not in both.

    Fine-tune files are the same where they teach the same; see `teaches_the_same`.
    """
    names = {str(p.relative_to(root)) for root in (one, other) for p in root.rglob("*") if p.is_file()}
    return sorted(
        name
        for name in names
        if not ((one / name).is_file() and (other / name).is_file() and same_file(one / name, other / name))
        and not any(teaches_the_same(*pair) for pair in ((one / name, other / name), (other / name, one / name)))
    )


# Fine-tune files, which 0.1.0 wrote in chats of their own: with the instructions of an agent's first turn before all
# of its turns, and for TRL and verl with senders in the text. They are written as they were played since.


def teaches_the_same(old: Path, new: Path) -> bool:
    """Whether a fine-tune file or its trace, or a report of such files, has all of one of 0.1.0 but the chats' form."""
    if not (old.is_file() and new.is_file()):
        return False
    if old.name == "report.json":
        pairs = zip(read_json(old), read_json(new), strict=True)
        return all((was["file"], was["written"]) == (row["file"], row["written"]) for was, row in pairs)
    data, form = old.name.removesuffix(".trace.jsonl"), 0 if old.name.endswith(".trace.jsonl") else 1
    if data.endswith((".sft.jsonl", ".sft.trl.jsonl")):
        return facts(old)[form] <= facts(new)[form]
    if data.endswith((".dpo.trl.jsonl", ".rl.parquet")):
        pairs = zip(chats(old), chats(new), strict=True)
        return all(rest == now and has_same_texts(chat, then) for (then, rest), (chat, now) in pairs)
    return False


def has_same_texts(chat: list[dict[str, Any]], then: list[dict[str, Any]]) -> bool:
    """Whether a chat as it was played says what one with senders in the text said, in that order."""
    said = [f"{message.get('name')}: " * bool(message.get("name")) + message["content"] for message in chat]
    return "\n\n".join(said) == "\n\n".join(message["content"] for message in then)


def chats(path: Path) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The prompt of each line of a file, and all else of it."""
    if path.suffix == ".parquet":
        columns, found = rows(path)
        lines = [dict(zip((name for name, _ in columns), row, strict=True)) for row in found]
    else:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [(line.pop("prompt"), line) for line in lines]


def facts(path: Path) -> tuple[set[str], set[str]]:
    """Of a supervised file or its trace: the games that it teaches, and the answers."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    games = {line["rollout_id"] for line in lines if "rollout_id" in line}
    learnt = (m for line in lines for m in (*line.get("messages", ()), *line.get("completion", ())))
    return games, {m["content"] for m in learnt if m["role"] == "assistant" and m.get("weight") != 0}


def differing_results(one: Path, other: Path, *tables: str) -> list[str]:
    """Which of the files that follow from a run's answers are not the same in two runs."""
    names = [*(f"{table}.parquet" for table in tables or TABLES), "metrics.json"]
    found = [name for name in names if not same_file(one / name, other / name)]
    both = [one / "fine_tune", other / "fine_tune"]
    return [*found, *(differing(*both) if any(path.is_dir() for path in both) else [])]


def journal(run: Path, name: str = "journal.jsonl") -> list[dict[str, Any]]:
    """The records of a journal whose lines are all whole; from format 2 on, each checksum starts from the first."""
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


def holds(new: Any, old: Any) -> bool:
    """Whether all that was said is still said: mappings may have more keys, and nothing else may differ."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and holds(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


ADDED = (
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
"""What a saved spec has more than one of 0.1.0: keys that came since, as 0.1.0 would have had them."""


def without_new_keys(spec: Path) -> str:
    """A saved spec without the keys that 0.1.0 does not know; those of models as often as they."""
    text = spec.read_text("utf-8")
    for block in ADDED:
        text = text.replace(block, "")
    return text


def with_new_names(spec: Path) -> str:
    """A saved spec of 0.1.0 with the keys that were renamed since by their new names."""
    text = spec.read_text("utf-8")
    assert text.count("  most_calls: ") == 1
    return text.replace("  most_calls: ", "  max_calls: ")
