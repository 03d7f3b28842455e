"""`nip-run show`: what happened in a run, as its records have it."""

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
from tests.cli.test_cli import Called, called
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

SIZE, REPEATS = 8, 3
FAULTS = {"bad_decision": 0.35, "server_error": 0.1}
BAD = "I have checked it.\n\nDecision: undecided"


class Shown(NamedTuple):
    """A run at a server that answers badly now and then, and every request that the server got."""

    folder: Path
    run: Path
    bodies: list[bytes]

    def show(self, *words: str) -> Called:
        done = called("show", *words, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.show(*words, "--json").stdout)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return table(self.run, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    made = tmp_path_factory.mktemp("served")
    with run_chat_server(faults=FAULTS, max_faults=9, record=5000, seed=3) as server:
        path = spec_file(made, server.base_url, size=SIZE, rollouts={"per_datapoint": REPEATS})
        run_spec(path, made / "results")
        bodies = [one["body"].encode() for one in server.recorded_requests()]
    return Shown(made, only_run(made / "results"), bodies)


# A list of rollouts


def retries(rows: list[dict[str, Any]]) -> Counter[str]:
    """Answers beyond the first of each turn, by rollout, counted otherwise than by the program."""
    turns: dict[tuple[str, int, str], set[int]] = {}
    for row in rows:
        if row["latency_ms"] is not None:
            turns.setdefault((row["rollout_id"], row["round"], row["agent"]), set()).add(row["attempt"])
    return Counter(name for (name, _, _), attempts in turns.items() for _ in range(len(attempts) - 1))


@pytest.mark.full
def test_a_run_lists_its_rollouts_with_what_became_of_each(served: Shown) -> None:
    again, rows = retries(served.rows("completions")), served.rows("rollouts")
    failed = Counter(row["rollout_id"] for row in served.rows("completions") if row["latency_ms"] is None)
    assert again.total() > 2
    assert failed.total() > 1
    shown = served.json("last", "--all")
    assert shown["more"] == 0
    for row, listed in zip(rows, shown["rollouts"], strict=True):
        same = ("rollout_id", "datapoint_id", "repeat", "decision", "correct", "outcome", "rounds")
        assert {name: listed[name] for name in same} == {name: row[name] for name in same}
        counts = (again[row["rollout_id"]], failed[row["rollout_id"]])
        assert (listed["label"], listed["retries"], listed["failed_calls"]) == (row["y"], *counts)


def test_a_list_is_short_and_says_how_many_more_there_are(served: Shown) -> None:
    said = served.show("last").stdout
    assert len(re.findall(r"^[0-9a-f]{16}  ", said, re.MULTILINE)) == 20
    assert f"{SIZE * REPEATS - 20} more: add --all, or --limit N\n" in said
    assert served.json("last", "--limit", "5")["more"] == SIZE * REPEATS - 5


def test_rollouts_are_wrong_or_undecided_or_right(served: Shown) -> None:
    rows = served.rows("rollouts")

    def ids(*words: str) -> set[str]:
        return {row["rollout_id"] for row in served.json("last", "--all", *words)["rollouts"]}

    wrong = {row["rollout_id"] for row in rows if row["decision"] != 2 and not row["correct"]}
    undecided = {row["rollout_id"] for row in rows if row["decision"] == 2}
    assert wrong
    assert ids("--wrong") == wrong
    assert ids("--undecided") == undecided
    assert ids("--wrong", "--undecided") == wrong | undecided
    assert ids("--repeat", "1") == {row["rollout_id"] for row in rows if row["repeat"] == 1}


@pytest.mark.full
def test_a_run_that_is_not_finished_lists_what_is_in_its_journal(served: Shown, tmp_path: Path) -> None:
    copy = Shown(tmp_path, tmp_path / "results" / "runs" / served.run.name, [])
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    for name in ("rollouts", "completions", "messages"):
        (copy.run / f"{name}.parquet").unlink()
    for words in (("--all",), ("--all", "--wrong", "--undecided", "--repeat", "2")):
        assert copy.json("last", *words)["rollouts"] == served.json("last", *words)["rollouts"]
    assert copy.json("last", "--limit", "3")["more"] is None
    assert "there are more: add --all" in copy.show("last").stdout


def test_a_repeat_of_a_datapoint_is_chosen(served: Shown) -> None:
    for repeat in range(REPEATS):
        shown = served.json("last", "p2", "--repeat", str(repeat))
        assert (shown["datapoint"]["id"], shown["repeat"]) == ("p2", repeat)
    assert f"matches {REPEATS} rollouts" in served.show("last", "p2").stderr
    assert called("show", "last", "p2", "--repeat", "9", cwd=served.folder).returncode == 2


# A transcript


def is_bad(row: dict[str, Any]) -> bool:
    return bool(row["agent"] == "verifier" and row["raw_message"] == BAD)


def test_every_answer_is_shown_with_why_it_could_not_be_used(served: Shown) -> None:
    completions = [row for row in served.rows("completions") if row["latency_ms"] is not None]
    for name, again in retries(served.rows("completions")).most_common(3):
        assert again > 0
        told = [
            (each["round"], agent, answer["attempt"], answer["raw"], answer["unusable"] is not None)
            for each in served.json("last", name)["transcript"]
            for agent, answers in each["answers"].items()
            for answer in answers
        ]
        assert told == [
            (row["round"], row["agent"], row["attempt"], row["raw_message"], is_bad(row))
            for row in completions
            if row["rollout_id"] == name
        ]


@pytest.mark.full
def test_what_stands_under_a_channel_is_what_was_delivered_there(tmp_path: Path) -> None:
    with run_chat_server(text="Decision: maybe") as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "mnip"}, prompts="prompts/code_validation/mnip",
            agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        run_spec(path, tmp_path / "results")
    said = called("show", "last", "p0", "--round", "0", cwd=tmp_path).stdout
    for answer in (1, 2, 3):
        assert f"[round 0] verifier (answer {answer} of 3 could not be used)\n  why: the answer holds" in said
    for prover in ("prover0", "prover1"):
        assert f"[round 0] verifier ({prover}_channel, to {prover})\n  (left empty: no answer could be used)\n" in said
    assert said.count("  | Decision: maybe\n") == 3


def test_calls_that_failed_are_shown_with_what_the_server_said(served: Shown) -> None:
    failed = next(row for row in served.rows("completions") if row["latency_ms"] is None)
    shown = served.show("last", failed["rollout_id"]).stdout
    assert f"[round {failed['round']}] {failed['agent']} (call failed)\n" in shown
    assert re.search(r"; retried\s+after\s+\d+\.\d+\s+s", shown)


# What was sent


@pytest.mark.full
def test_a_prompt_is_byte_for_byte_what_the_server_got(served: Shown) -> None:
    sent = Counter(served.bodies)
    shown: Counter[bytes] = Counter()
    for row in served.rows("rollouts")[:3]:
        asked = []
        for agent in ("prover", "verifier"):
            for prompt in served.json("last", row["rollout_id"], "--prompt", agent)["prompts"]:
                shown[orjson.dumps(prompt["body"])] += prompt["attempts"]
                asked += [(prompt["round"], agent)] * prompt["attempts"]
        mine = [one for one in served.rows("completions") if one["rollout_id"] == row["rollout_id"]]
        assert sorted(asked) == sorted((one["round"], one["agent"]) for one in mine if one["latency_ms"] is not None)
    assert shown <= sent


def test_a_prompt_that_the_folder_no_longer_gives_is_refused(served: Shown, tmp_path: Path) -> None:
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    (prompt,) = (tmp_path / "results" / "runs" / served.run.name / "inputs").rglob("verifier.jinja")
    prompt.write_text(prompt.read_text("utf-8") + "One more line.\n", "utf-8")
    done = called("show", "last", "p0", "--prompt", "verifier", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "edited" in done.stderr or "changed" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("last", "p0", "--prompt", "verifyer"), "did you mean 'verifier'"),
        (("last", "p0", "--prompt", "prover", "--round", "0"), "was not called in round 0"),
        (("last", "p0", "--round", "99"), "has no round 99"),
        (("last", "--prompt", "prover"), "nip-run show RUN ROLLOUT --prompt prover"),
        (("last", "--limit", "-1"), "--limit -1"),
    ],
)
def test_what_cannot_be_shown_is_said(served: Shown, words: tuple[str, ...], said: str) -> None:
    done = called("show", *words, cwd=served.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


# The newest run


def test_last_is_the_run_that_was_begun_last_and_no_part_of_another(served: Shown, tmp_path: Path) -> None:
    nothing = called("show", cwd=tmp_path)
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
    assert results.find("on").run_id == "one"  # whose part the other is
    (results.run("last").path).mkdir()
    shutil.copy(results.run("c").manifest_path, results.run("last").manifest_path)
    assert results.find("last").run_id == "last"


# In a terminal


def test_words_stay_whole_and_code_keeps_its_indentation() -> None:
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


def test_letters_of_two_columns_are_counted_as_two() -> None:
    assert (display_width("日本"), display_width("e\u0301"), display_width("ab")) == (4, 1, 2)
    assert list(wrap_lines("日本 日本 日本", MIN_WRAP_WIDTH // 2)) == ["日本 日本", "日本"]


@pytest.mark.full
def test_no_line_is_wider_than_the_terminal_and_each_agent_has_its_colour(served: Shown) -> None:
    row = max(served.rows("rollouts"), key=lambda one: one["rounds"])
    code, seen = run_in_terminal("show", "last", row["rollout_id"], cwd=served.folder, COLUMNS="50")
    assert code == 0
    assert all(len(line) <= 50 for line in re.sub(r"\x1b\[[0-9;]*m|\r", "", seen).split("\n"))
    styles = dict(re.findall(r"\x1b\[1;(3\d)m\[round \d+\] (\w+)", seen))
    assert {"prover", "verifier"} == set(styles.values())
    assert len(styles) == 2
    _, plain = run_in_terminal("show", "last", row["rollout_id"], cwd=served.folder, COLUMNS="50", NO_COLOR="1")
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", seen) == plain


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
    many = [(name, {**one, "n": 256, "clusters": 64}) for name, one in tests]
    assert format_curve(many)[0].endswith("accuracy, n 256, 64 clusters")
    assert max(map(len, format_curve(many))) <= 80
    start, end = head.index("0"), head.index(" 1 ") + 1
    for line, marks in zip(lines, ((0.25, 0.5, 0.75), (0.5, 1.0)), strict=False):
        found = [index for index, mark in enumerate(line) if mark in "├●┤|o" and start <= index <= end]
        assert found == [start + round(mark * (end - start)) for mark in marks]


def test_many_iterations_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {"p": {"examples": 3, "outcome": "trained"}}
    models = {"p": {"model": "m"}}
    rows = [{"iteration": index, "outcomes": outcomes, "models": models} for index in range(9)]
    games = {"rollouts": 1, "completions": 1, "cost_usd": 0.0}
    for count, whole, told, folded in (
        (9, False, [0, 1, 2, 6, 7, 8], 3),
        (6, False, range(6), 0),
        (9, True, range(9), 0),
    ):
        show_training(
            {"run_id": "r", "iterations": rows[:count], "tests": [], "games": games},
            "nip-run show r --all",
            full=whole,
        )
        said = capsys.readouterr().out
        assert re.findall(r"^iteration (\d)", said, re.MULTILINE) == [str(index) for index in told]
        assert (f"... {folded} more iterations: nip-run show r --all\n" in said) == (folded > 0)
