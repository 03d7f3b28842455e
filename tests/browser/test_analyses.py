"""Answers of analyses in a browser: shown below their messages, with marked spans."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.results.folder import RunFolder
from runner.runs.finished.result import FinishedRun
from tests.browser.conftest import PageOpener
from tests.support.analyses import write_analysis, yes
from tests.support.hostile_payloads import PAYLOADS
from tests.support.report_pages import report
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def message(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str, str]:
    """The report of a run with an analysis, the run's id, a rollout id and the text of its first message."""
    folder = tmp_path_factory.mktemp("analyses")
    run_spec(spec_file(folder, size=6), folder / "results")
    run = only_run(folder / "results")
    finished = FinishedRun.from_folder(RunFolder(run))
    rollouts = [rollout for (rollout,) in finished.rollouts().project("rollout_id").fetchall()]
    rollout, message = next(
        (rollout, messages[0]) for rollout in rollouts if (messages := finished.transcript(rollout).messages)
    )
    location = {"agent": message.agent, "channel": message.channel, "round": message.round}
    write_analysis(run, lambda *_: [
        yes(False, **location, reason=PAYLOADS["script"]),
        yes(True, unit="game", reason="a part", spans=[{**location, "start": 2, "end": 6}]),
    ])  # fmt: skip
    path = folder / "report.html"
    path.write_bytes(report(run))
    return path, run.name, rollout, message.text


def test_answer_is_shown_below_its_message_with_marked_spans(
    message: tuple[Path, str, str, str], open_watched: PageOpener
) -> None:
    path, run_id, rollout, text = message
    page = open_watched().open(path)
    page.evaluate("([run, game]) => { location.hash = `#/run/${run}/game/${game}`; }", [run_id, rollout])
    page.locator("aside.facts section.analyses").wait_for()
    assert page.locator("mark").all_inner_texts() == [text[2:6]]
    answers = page.locator(".conversation .analysis").all_inner_texts()
    assert answers == [
        f"role_conformance: no {PAYLOADS['script']} (judge-1)", "role_conformance: yes a part (judge-1)"
    ]  # fmt: skip
    assert page.evaluate("window.pwned === undefined")
    page.get_by_role("button", name="As prover saw it").click()
    page.locator("aside.facts dt", has_text="Not shown").wait_for()
    assert page.locator(".analysis, mark").count() == 0
