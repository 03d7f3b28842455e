"""The progress line of a run: its parts at each width, in a sweep and in a training run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.cli.terminal.progress import Display, ProgressLine, WatchedRun, show_progress
from runner.models.usage_totals import UsageTotals
from runner.runs.execution.accounting import Progress
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal


def make_progress(**overrides: object) -> Progress:
    defaults = {
        "jobs": 45, "total": 96, "failures": 3, "repeats": 7, "right": 21, "judged": 45,
        "last_error": "429 Rate\nlimit", "answers": UsageTotals(0.25, 0, 338, 90_000, 10_000), "in_flight": lambda: 12,
    }  # fmt: skip
    return Progress(**{**defaults, **overrides})  # type: ignore[arg-type]


def render_line(
    width: int, seconds: float = 30.0, name: str = "quickstart", point: str = "", **overrides: object
) -> str:
    now = 100.0
    view = ProgressLine(name, point, clock=lambda: now)
    progress = make_progress(**overrides)
    jobs, failures = progress.jobs, progress.failures
    progress.jobs = progress.failures = 0
    view.text_within(progress, width)
    progress.jobs, progress.failures, now = jobs, failures, now + seconds
    return view.text_within(progress, width)


def test_wide_terminal_shows_all_parts() -> None:
    assert render_line(240, point="point 2 of 6", stage="iteration 1 of 3: games") == (
        "quickstart 45/96 rollouts, point 2 of 6, iteration 1 of 3: games, 0:30, $0.25, 12 in flight, 10 retries, "
        "0:34 left, accuracy 0.47 (n=45), 3 failed calls, 7 repeats, 1.5/s, 338 calls, 100.0k tokens; "
        "error: 429 Rate\\nlimit"
    )


def test_count_is_never_cut_and_the_least_important_parts_are_dropped_first() -> None:
    assert render_line(79, last_error="") == (
        "quickstart 45/96 rollouts, 0:30, $0.25, 12 in flight, 10 retries, 0:34 left"
    )
    assert render_line(60, last_error="") == "45/96 rollouts, 0:30, $0.25, 12 in flight, 10 retries, 1.5/s"
    for width in range(14, 240):
        for error in ("", "429 Rate limit reached; try again in 20 s"):
            line = render_line(width, last_error=error)
            assert "45/96 rollouts" in line
            assert len(line) <= width
    assert render_line(5) == "45/96 rollouts"


def test_last_error_fits_into_80_columns() -> None:
    line = render_line(79, last_error="429 Rate limit reached for tiny; try again in 20 s")
    assert line == "45/96 rollouts, 0:30, $0.25, 12 in flight, 10 retries; error: 429 Rate limit..."


@pytest.mark.parametrize("error", ["", "x" * 500])
@pytest.mark.parametrize("usd", [0.0, 0.25, 98_765.43, None])
@pytest.mark.parametrize("jobs", [1, 123_456])
def test_cost_calls_in_flight_and_retries_are_always_shown_at_80_columns(
    error: str, usd: float | None, jobs: int
) -> None:
    line = render_line(
        79, jobs=jobs, total=jobs, failures=70_000, repeats=4_321, last_error=error, in_flight=lambda: 12_345,
        answers=UsageTotals(usd or 0.0, 0, 338), priced=usd is not None,
    )  # fmt: skip
    cost = "cost unknown" if usd is None else f"${usd:,.2f}"
    assert f"{jobs}/{jobs} rollouts" in line
    for part in (f"{cost}, ", "12345 in flight, ", "74,321 retries"):
        assert part in line
    assert len(line) <= 79


def test_line_has_all_counts_before_the_first_call() -> None:
    line = render_line(79, jobs=0, judged=0, failures=0, repeats=0, answers=UsageTotals(), in_flight=lambda: 0)
    assert line.startswith("quickstart 0/96 rollouts, 0:30, $0.00, 0 in flight, 0 retries")


def test_narrow_terminals_drop_retries_then_calls_in_flight_then_the_cost() -> None:
    presence = [
        [part in render_line(width) for part in ("$0.25", "12 in flight", "10 retries")] for width in range(14, 60)
    ]
    assert sorted(presence) == presence
    assert [True, False, False] in presence
    assert [True, True, False] in presence
    assert presence[-1] == [True, True, True]


def test_last_error_disappears_some_seconds_after_the_last_failure() -> None:
    now, progress = 0.0, make_progress(failures=0)
    view = ProgressLine("x", clock=lambda: now)
    view.full_text(progress)
    error_shown = []
    for seconds, failures in ((20.0, 1), (34.0, 1), (36.0, 1), (40.0, 2), (60.0, 2)):
        now, progress.failures = seconds, failures
        error_shown.append("error: 429" in view.full_text(progress))
    assert error_shown == [True, True, False, True, False]


def test_without_games_the_stage_is_shown() -> None:
    assert render_line(79, jobs=0, total=0, stage="iteration 1 of 3: fine-tuning m") == (
        "iteration 1 of 3: fine-tuning m, 0:30, $0.25, 12 in flight, 10 retries"
    )


def test_rate_is_computed_over_the_last_minute() -> None:
    now, progress = 0.0, make_progress(jobs=0, total=1000)
    view = ProgressLine("x", clock=lambda: now)
    for second in range(0, 601, 5):
        now, progress.jobs = float(second), min(2 * second, 200) + max(second - 300, 0)
        line = view.full_text(progress)
    assert "1.0/s" in line
    assert "8:20 left" in line


@pytest.mark.full
def test_real_terminal_shows_full_counts_and_ctrl_c_says_what_it_waits_for(tmp_path: Path) -> None:
    with run_chat_server(latency=0.2, faults={"rate_limit": 0.2}, max_faults=1000) as server:
        spec_file(tmp_path, server.base_url, size=40)
        code, output = run_in_terminal(
            "spec.yaml", cwd=tmp_path, columns=80, interrupted_when=lambda: server.stats()["requests"] >= 20
        )
    assert code == 130
    lines = [line for line in re.split(r"[\r\n]+", output) if "rollouts" in line and " in flight, at most" not in line]
    assert lines
    for line in lines:
        assert re.search(r"(^| )\d+/40 rollouts", line), line
        assert len(line) < 80
    assert re.search(r"waiting for \d calls? in flight, at most 30 s; press Ctrl-C again to stop immediately", output)


class RecordingDisplay(Display):
    """A display that returns the line it would show."""

    def line_after(self, index: int, progress: Progress) -> str:
        self._latest[index] = progress
        line, combined = self._line_of(index)
        return line.full_text(combined)


def test_parallel_points_share_one_line_with_their_sums_and_no_accuracy() -> None:
    display = RecordingDisplay(
        [WatchedRun("a", 96), WatchedRun("a", 96), WatchedRun("a", 96), WatchedRun("train", None)], set()
    )
    assert display.line_after(0, make_progress(jobs=90, failures=0)).startswith("90/288 rollouts, point 1 of 4")
    line = display.line_after(1, make_progress(jobs=6, failures=0))
    assert line.startswith("96/288 rollouts, points 1 to 2 of 4")
    assert "24 in flight" in line
    assert "$0.50" in line
    assert "accuracy" not in line
    display.mark_finished(2)  # it was finished earlier and reports no progress
    assert display.line_after(0, make_progress(jobs=96, failures=0)).startswith("198/288 rollouts, point 2 of 4")
    assert display.line_after(3, make_progress(stage="iteration 0 (1 of 2): games")).startswith(
        "45/96 rollouts, point 4 of 4, it"
    )
    nouns = ("analysis", "analyses")
    analyses = RecordingDisplay([WatchedRun("a", 96, nouns), WatchedRun("b", 96, nouns)], set())
    assert analyses.line_after(0, make_progress(jobs=90, failures=0)).startswith("90/192 rollouts, analysis 1 of 2")
    assert analyses.line_after(1, make_progress(jobs=6, failures=0)).startswith("96/192 rollouts, analyses 1 to 2 of 2")


def test_identical_notes_and_warnings_of_several_points_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown_notes: set[str] = set()
    with show_progress([WatchedRun("a", 9), WatchedRun("a", 9)], shown_notes, quiet=False) as display:
        first, second = display.on_progress_of(0), display.on_progress_of(1)
        assert first is not None
        assert second is not None
        for watch in (first, second):
            watch(make_progress(notes=["the same"], warnings={"http://x": "cannot reach http://x"}))
        display.mark_finished(0)
        second(make_progress(notes=["the same", "another"], warnings={}))
    assert capsys.readouterr().err.splitlines() == [
        "a: note: the same", "a: cannot reach http://x", "a: note: another", "a: http://x answers again",
    ]  # fmt: skip
    assert shown_notes == {"the same", "another"}


def test_cost_below_a_cent_is_not_shown_as_zero() -> None:
    assert "$0.0012, " in render_line(79, answers=UsageTotals(0.0012, 0, 2, 90, 10), last_error="")
    assert "<$0.0001, " in render_line(79, answers=UsageTotals(0.00002, 0, 2, 90, 10), last_error="")


def test_failure_that_ended_its_game_does_not_count_as_a_retry() -> None:
    assert "8 retries" in render_line(79, failures=3, repeats=7, outcomes={"transport_failed": 2}, last_error="")
