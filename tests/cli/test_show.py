"""`nip-run show`: rollouts, transcripts and prompts from the records of a run."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from runner.base.errors import UsageError
from runner.cli.terminal.learning_curve import format_curve, show_training
from runner.cli.terminal.output import MIN_WRAP_WIDTH
from runner.cli.terminal.wrapping import display_width, wrap_lines
from runner.results.leaderboard.results_folder import Results
from tests.cli.test_cli import CliResult, run_cli
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

SIZE, REPEATS = 8, 3
FAULTS = {"bad_decision": 0.35, "server_error": 0.1}
BAD = "I have checked it.\n\nDecision: undecided"


class ServedRun(NamedTuple):
    """A run on a server with faults, and the body of every request that the server got."""

    folder: Path
    run: Path
    bodies: list[bytes]

    def show(self, *arguments: str) -> CliResult:
        process = run_cli("show", *arguments, cwd=self.folder)
        assert process.returncode == 0, process.stderr
        return process

    def json(self, *arguments: str) -> Any:
        return json.loads(self.show(*arguments, "--json").stdout)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return table(self.run, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedRun:
    root = tmp_path_factory.mktemp("served")
    with run_chat_server(faults=FAULTS, max_faults=9, record=5000, seed=3) as server:
        path = spec_file(root, server.base_url, size=SIZE, rollouts={"per_datapoint": REPEATS})
        run_spec(path, root / "results")
        bodies = [request["body"].encode() for request in server.recorded_requests()]
    return ServedRun(root, only_run(root / "results"), bodies)


# A list of rollouts


def count_retries(rows: list[dict[str, Any]]) -> Counter[str]:
    """Count the answers beyond the first of each turn by rollout, independently of the product's code."""
    turns: dict[tuple[str, int, str], set[int]] = {}
    for row in rows:
        if row["latency_ms"] is not None:
            turns.setdefault((row["rollout_id"], row["round"], row["agent"]), set()).add(row["attempt"])
    return Counter(name for (name, _, _), attempts in turns.items() for _ in range(len(attempts) - 1))


@pytest.mark.full
def test_show_lists_rollouts_with_their_outcomes_and_retries(served: ServedRun) -> None:
    retry_counts, rows = count_retries(served.rows("completions")), served.rows("rollouts")
    failed = Counter(row["rollout_id"] for row in served.rows("completions") if row["latency_ms"] is None)
    assert retry_counts.total() > 2
    assert failed.total() > 1
    listing = served.json("last", "--all")
    assert listing["more"] == 0
    for row, listed in zip(rows, listing["rollouts"], strict=True):
        fields = ("rollout_id", "datapoint_id", "repeat", "decision", "correct", "outcome", "rounds")
        assert {name: listed[name] for name in fields} == {name: row[name] for name in fields}
        counts = (retry_counts[row["rollout_id"]], failed[row["rollout_id"]])
        assert (listed["label"], listed["retries"], listed["failed_calls"]) == (row["y"], *counts)


def test_show_lists_20_rollouts_and_the_number_of_others(served: ServedRun) -> None:
    output = served.show("last").stdout
    assert len(re.findall(r"^[0-9a-f]{16}  ", output, re.MULTILINE)) == 20
    assert f"{SIZE * REPEATS - 20} more: add --all, or --limit N\n" in output
    assert served.json("last", "--limit", "5")["more"] == SIZE * REPEATS - 5


def test_show_filters_wrong_and_undecided_rollouts(served: ServedRun) -> None:
    rows = served.rows("rollouts")

    def listed_ids(*arguments: str) -> set[str]:
        return {row["rollout_id"] for row in served.json("last", "--all", *arguments)["rollouts"]}

    wrong = {row["rollout_id"] for row in rows if row["decision"] != 2 and not row["correct"]}
    undecided = {row["rollout_id"] for row in rows if row["decision"] == 2}
    assert wrong
    assert listed_ids("--wrong") == wrong
    assert listed_ids("--undecided") == undecided
    assert listed_ids("--wrong", "--undecided") == wrong | undecided
    assert listed_ids("--repeat", "1") == {row["rollout_id"] for row in rows if row["repeat"] == 1}


@pytest.mark.full
def test_show_lists_an_unfinished_run_from_its_journal(served: ServedRun, tmp_path: Path) -> None:
    copy = ServedRun(tmp_path, tmp_path / "results" / "runs" / served.run.name, [])
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    for name in ("rollouts", "completions", "messages"):
        (copy.run / f"{name}.parquet").unlink()
    for arguments in (("--all",), ("--all", "--wrong", "--undecided", "--repeat", "2")):
        assert copy.json("last", *arguments)["rollouts"] == served.json("last", *arguments)["rollouts"]
    assert copy.json("last", "--limit", "3")["more"] is None
    assert "there are more: add --all" in copy.show("last").stdout


def test_show_selects_a_repeat_of_a_datapoint(served: ServedRun) -> None:
    for repeat in range(REPEATS):
        rollout = served.json("last", "p2", "--repeat", str(repeat))
        assert (rollout["datapoint"]["id"], rollout["repeat"]) == ("p2", repeat)
    assert f"matches {REPEATS} rollouts" in served.show("last", "p2").stderr
    assert run_cli("show", "last", "p2", "--repeat", "9", cwd=served.folder).returncode == 2


# A transcript


def is_bad(row: dict[str, Any]) -> bool:
    return bool(row["agent"] == "verifier" and row["raw_message"] == BAD)


def test_show_prints_every_answer_and_why_it_was_unusable(served: ServedRun) -> None:
    completions = [row for row in served.rows("completions") if row["latency_ms"] is not None]
    for name, retry_count in count_retries(served.rows("completions")).most_common(3):
        assert retry_count > 0
        shown_answers = [
            (transcript_round["round"], agent, answer["attempt"], answer["raw"], answer["unusable"] is not None)
            for transcript_round in served.json("last", name)["transcript"]
            for agent, answers in transcript_round["answers"].items()
            for answer in answers
        ]
        assert shown_answers == [
            (row["round"], row["agent"], row["attempt"], row["raw_message"], is_bad(row))
            for row in completions
            if row["rollout_id"] == name
        ]


@pytest.mark.full
def test_transcript_shows_what_was_delivered_on_each_channel(tmp_path: Path) -> None:
    with run_chat_server(text="Decision: maybe") as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "mnip"}, prompts="prompts/code_validation/mnip",
            agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        run_spec(path, tmp_path / "results")
    output = run_cli("show", "last", "p0", "--round", "0", cwd=tmp_path).stdout
    for answer in (1, 2, 3):
        assert f"[round 0] verifier (answer {answer} of 3 could not be used)\n  why: the answer holds" in output
    for prover in ("prover0", "prover1"):
        assert (
            f"[round 0] verifier ({prover}_channel, to {prover})\n  (left empty: no answer could be used)\n" in output
        )
    assert output.count("  | Decision: maybe\n") == 3


def test_failed_calls_are_shown_with_the_error_of_the_server(served: ServedRun) -> None:
    failed = next(row for row in served.rows("completions") if row["latency_ms"] is None)
    output = served.show("last", failed["rollout_id"]).stdout
    assert f"[round {failed['round']}] {failed['agent']} (call failed)\n" in output
    assert re.search(r"; retried\s+after\s+\d+\.\d+\s+s", output)


# Prompts


@pytest.mark.full
def test_shown_prompts_equal_the_request_bodies_byte_for_byte(served: ServedRun) -> None:
    sent = Counter(served.bodies)
    shown_bodies: Counter[bytes] = Counter()
    for row in served.rows("rollouts")[:3]:
        prompt_calls = []
        for agent in ("prover", "verifier"):
            for prompt in served.json("last", row["rollout_id"], "--prompt", agent)["prompts"]:
                shown_bodies[orjson.dumps(prompt["body"])] += prompt["attempts"]
                prompt_calls += [(prompt["round"], agent)] * prompt["attempts"]
        completions = [
            completion for completion in served.rows("completions") if completion["rollout_id"] == row["rollout_id"]
        ]
        assert sorted(prompt_calls) == sorted(
            (completion["round"], completion["agent"])
            for completion in completions
            if completion["latency_ms"] is not None
        )
    assert shown_bodies <= sent


def test_prompt_of_an_edited_template_is_refused(served: ServedRun, tmp_path: Path) -> None:
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    (prompt,) = (tmp_path / "results" / "runs" / served.run.name / "inputs").rglob("verifier.jinja")
    prompt.write_text(prompt.read_text("utf-8") + "One more line.\n", "utf-8")
    process = run_cli("show", "last", "p0", "--prompt", "verifier", cwd=tmp_path)
    assert process.returncode in (1, 2)
    assert "edited" in process.stderr or "changed" in process.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("last", "p0", "--prompt", "verifyer"), "did you mean 'verifier'"),
        (("last", "p0", "--prompt", "prover", "--round", "0"), "was not called in round 0"),
        (("last", "p0", "--round", "99"), "has no round 99"),
        (("last", "--prompt", "prover"), "nip-run show RUN ROLLOUT --prompt prover"),
        (("last", "--limit", "-1"), "--limit -1"),
    ],
)
def test_show_usage_errors_exit_2_with_the_reason(served: ServedRun, arguments: tuple[str, ...], message: str) -> None:
    process = run_cli("show", *arguments, cwd=served.folder)
    assert (process.returncode, process.stdout) == (2, "")
    assert message in process.stderr


# The newest run


def test_last_is_the_newest_run_and_never_a_part_of_another(served: ServedRun, tmp_path: Path) -> None:
    nothing = run_cli("show", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "no run in results yet" in nothing.stderr
    manifest = json.loads((served.run / "manifest.json").read_bytes())
    for name, day, parent in (("one-b", 2, None), ("one", 3, None), ("c", 1, None), ("one-i0", 4, "one")):
        (tmp_path / "results" / "runs" / name).mkdir(parents=True)
        facts = {**manifest, "run_id": name, "started_at": f"2026-01-0{day}T00:00:00Z", "parent_run_id": parent}
        (tmp_path / "results" / "runs" / name / "manifest.json").write_text(json.dumps(facts))
    results = Results(tmp_path / "results")
    assert results.find("last").run_id == "one"
    assert results.find("one-i").run_id == "one-i0"
    with pytest.raises(UsageError, match="the start of 2 run ids; write more of one: one, one-b"):
        results.find("on")
    shutil.rmtree(results.run("one-b").path)
    assert results.find("on").run_id == "one"  # the other match is a part of it
    (results.run("last").path).mkdir()
    shutil.copy(results.run("c").manifest_path, results.run("last").manifest_path)
    assert results.find("last").run_id == "last"


# In a terminal


def test_wrapping_breaks_no_word_and_keeps_indentation() -> None:
    text = "    if x > 1:\n        return the_value_of_x + the_value_of_y  # both\n\tx\n\n" + "z" * 50
    lines = list(wrap_lines(text, 40, "  "))
    assert lines == [
        "      if x > 1:",
        "          return the_value_of_x +",
        "          the_value_of_y  # both",
        "  \tx",
        "",
        "  " + "z" * 50,
    ]
    assert list(wrap_lines(text, None)) == text.split("\n")


def test_wide_characters_count_as_two_columns() -> None:
    assert (display_width("日本"), display_width("e\u0301"), display_width("ab")) == (4, 1, 2)
    assert list(wrap_lines("日本 日本 日本", MIN_WRAP_WIDTH // 2)) == ["日本 日本", "日本"]


@pytest.mark.full
def test_no_line_is_wider_than_the_terminal_and_each_agent_has_its_color(served: ServedRun) -> None:
    row = max(served.rows("rollouts"), key=lambda rollout: rollout["rounds"])
    code, output = run_in_terminal("show", "last", row["rollout_id"], cwd=served.folder, COLUMNS="50")
    assert code == 0
    assert all(len(line) <= 50 for line in re.sub(r"\x1b\[[0-9;]*m|\r", "", output).split("\n"))
    styles = dict(re.findall(r"\x1b\[1;(3\d)m\[round \d+\] (\w+)", output))
    assert {"prover", "verifier"} == set(styles.values())
    assert len(styles) == 2
    _, plain = run_in_terminal("show", "last", row["rollout_id"], cwd=served.folder, COLUMNS="50", NO_COLOR="1")
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", output) == plain


# A learning curve


def test_a_curve_is_drawn_to_scale_and_no_line_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tests = [
        (name, {"value": value, "ci_low": low, "ci_high": high, "n": 40, "clusters": 40})
        for name, value, low, high in (("before iteration 0", 0.5, 0.25, 0.75), ("in the end", 1.0, 0.5, 1.0))
    ]
    head, *lines = format_curve(
        [*tests, ("none", {"value": None, "ci_low": None, "ci_high": None, "n": 0, "clusters": 0})]
    )
    assert max(map(len, (head, *lines))) <= 80
    many = [(name, {**interval, "n": 256, "clusters": 64}) for name, interval in tests]
    assert format_curve(many)[0].endswith("accuracy, n 256, 64 clusters")
    assert max(map(len, format_curve(many))) <= 80
    start, end = head.index("0"), head.index(" 1 ") + 1
    for line, marks in zip(lines, ((0.25, 0.5, 0.75), (0.5, 1.0)), strict=False):
        positions = [index for index, mark in enumerate(line) if mark in "├●┤|o" and start <= index <= end]
        assert positions == [start + round(mark * (end - start)) for mark in marks]


def test_many_iterations_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {"p": {"examples": 3, "outcome": "trained"}}
    models = {"p": {"model": "m"}}
    rows = [{"iteration": index, "outcomes": outcomes, "models": models} for index in range(9)]
    games = {"rollouts": 1, "completions": 1, "cost_usd": 0.0}
    for count, full, expected, folded in (
        (9, False, [0, 1, 2, 6, 7, 8], 3),
        (6, False, range(6), 0),
        (9, True, range(9), 0),
    ):
        show_training(
            {"run_id": "r", "iterations": rows[:count], "tests": [], "games": games},
            "nip-run show r --all",
            full=full,
        )
        output = capsys.readouterr().out
        assert re.findall(r"^iteration (\d)", output, re.MULTILINE) == [str(index) for index in expected]
        assert (f"... {folded} more iterations: nip-run show r --all\n" in output) == (folded > 0)
