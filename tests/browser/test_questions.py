"""The page where people answer questions: two people, a reload, a kill, hostile texts and accessibility."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from runner.models.journal_records import CallRecord, read_records
from runner.results.folder import RunFolder
from tests.browser.conftest import PageOpener
from tests.browser.test_accessibility import find_violations
from tests.support.hostile_payloads import PAYLOADS
from tests.support.processes import wait_for_exit, wait_until
from tests.support.question_process import human_judge_spec, run_with_questions
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer

GAMES = 20


def enter_name(page: Any, name: str) -> None:
    page.keyboard.type(name)  # the name field has the focus
    page.keyboard.press("Enter")
    page.locator("#answer-form").wait_for()


def count_answers(page: Any) -> int:
    """Return the number of answers that the page has submitted."""
    count = page.locator("#status").inner_text().partition(" answer")[0]
    return int(count)


def answer_next(page: Any) -> None:
    """Answer by keyboard: ask the prover a question, or give a verdict if one is required."""
    before = count_answers(page)
    page.locator("#answer-form").wait_for()
    if page.get_by_role("radio", name="No verdict yet").count():
        page.keyboard.type("Which line decides?")
        page.keyboard.press("Control+Enter")
    else:
        page.keyboard.press("1")
    page.wait_for_function(
        "before => !document.getElementById('status').textContent.startsWith(`${before} answer`)", arg=before
    )
    assert count_answers(page) == before + 1


def read_calls(folder: RunFolder) -> list[CallRecord]:
    return [entry.record for entry in read_records(folder.journal) if isinstance(entry.record, CallRecord)]


def wait_for_journal(folder: RunFolder, server: LoopbackServer, answers: int) -> None:
    """Wait until all answers of people, and all calls that follow them, are in the journal."""

    def is_complete() -> bool:
        records = read_calls(folder)
        human = [record for record in records if record.sample.agent == "verifier"]
        questions = [record for record in human if record.sample.round == 0]
        return len(human) == answers and len(records) - len(human) == len(questions) == server.requests

    wait_until(is_complete)


def test_two_people_judge_20_games_through_a_reload_and_a_kill(browser: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
    question_ids: dict[str, list[str]] = {"Ann": [], "Ben": []}
    texts: list[str] = []

    def open_pages(address: str) -> dict[str, Any]:
        pages = {}
        for name, ids in question_ids.items():
            page = browser.new_page()
            page.set_default_timeout(20_000)

            def record(response: Any, ids: list[str] = ids) -> None:
                if response.request.method == "POST" and not response.url.endswith("leave"):
                    texts.append(response.text())
                    question = json.loads(texts[-1]).get("question")
                    ids += [] if question is None or question["id"] in ids else [question["id"]]

            page.on("response", record)
            page.goto(address)
            enter_name(page, name)
            pages[name] = page
        return pages

    with run_chat_server() as server:
        human_judge_spec(tmp_path, server.base_url, size=GAMES)
        with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
            pages = open_pages(run.address)
            for _ in range(4):
                for page in pages.values():
                    answer_next(page)
            ann = pages["Ann"]
            ann.locator("#answer-form").wait_for()
            chat_before = ann.locator("#chat").inner_text()
            ann.get_by_role("radio").first.focus()
            ann.locator("textarea").fill("a draft")
            ann.reload()
            ann.locator("#answer-form").wait_for()
            assert ann.locator("#chat").inner_text() == chat_before
            assert ann.locator("textarea").input_value() == "a draft"
            ann.locator("textarea").fill("")
            for _ in range(2):
                for page in pages.values():
                    answer_next(page)
            wait_for_journal(folder, server, 12)
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()
            for page in pages.values():
                page.close()
            calls = server.requests
        with run_with_questions("spec.yaml", "--run-id", "tiny", cwd=tmp_path) as run:
            assert server.requests == calls
            pages = open_pages(run.address)
            for count in range(2 * GAMES - 12):
                # They alternate, but the last questions may all belong to games of one of them.
                names = ["Ann", "Ben"] if count % 2 else ["Ben", "Ann"]
                wait_until(lambda: any(pages[name].locator("#answer-form").is_visible() for name in pages))
                answer_next(pages[next(name for name in names if pages[name].locator("#answer-form").is_visible())])
            for page in pages.values():
                page.get_by_text("Thank you. There are no more questions").wait_for()
                page.close()
            code, stdout, stderr = wait_for_exit(run.process)
        assert code == 0, stdout + stderr
        assert server.requests == GAMES
    records = read_calls(folder)
    samples = [record.sample for record in records]
    assert len(samples) == len(set(samples)) == 3 * GAMES
    human = [record.completion for record in records if record.sample.agent == "verifier"]
    assert {completion.other_fields["person"] for completion in human} == {"Ann", "Ben"}
    assert all(0 < completion.latency_ms < 600_000 and completion.usage.prompt_tokens == 0 for completion in human)
    assert not set(question_ids["Ann"]) & set(question_ids["Ben"])
    assert folder.manifest().rollouts == GAMES
    assert not [
        secret
        for secret in ("tiny", '"label":0', '"label":1', "datapoint", "stance", "spec.yaml")
        if secret in "".join(texts)
    ]
    for state in map(json.loads, texts):
        assert state.keys() == {"question", "has_ended", "others"}
        if state["question"] is not None:
            assert state["question"].keys() == {"id", "messages", "fields"}
            assert all(message.keys() <= {"role", "name", "content"} for message in state["question"]["messages"])


def test_unusable_verdict_is_refused_on_the_page_with_the_reason(open_watched: PageOpener, tmp_path: Path) -> None:
    human_judge_spec(tmp_path, size=1, verdict={"confidence": "stated"}, protocol={"max_message_rounds": 1})
    with run_with_questions("spec.yaml", cwd=tmp_path) as run:
        watched_page = open_watched()
        page = watched_page.open(run.address)
        enter_name(page, "Ann")
        page.keyboard.press("1")
        page.wait_for_function("() => document.activeElement.name === 'confidence'")
        page.keyboard.type("perhaps")
        page.keyboard.press("Enter")
        page.get_by_role("alert").filter(has_text="Not submitted").wait_for()
        problem = page.get_by_role("alert").inner_text()
        page.get_by_label("Confidence").fill("0.8")
        page.get_by_label("Reasons").fill("I first wrote Decision: accept")
        page.get_by_label("Decision: reject").check()
        page.keyboard.press("Control+Enter")
        page.get_by_role("alert").filter(has_text="another verdict than the selected one").wait_for()
        page.get_by_label("Reasons").fill("I was wrong first")
        page.keyboard.press("Control+Enter")
        page.get_by_text("1 answer submitted").wait_for()
        page.close()
        assert wait_for_exit(run.process)[0] == 0
    assert "confidence" in problem.lower()
    watched_page.problems = [
        logged for logged in watched_page.problems if "400 (Bad Request)" not in logged
    ]  # from the two refused answers
    (record,) = read_calls(RunFolder(next((tmp_path / "results" / "runs").iterdir())))
    assert record.completion.choices[0].text == "I was wrong first\n\nDecision: reject\nConfidence: 0.8"


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_and_hostile_texts_are_escaped(
    scheme: str, width: int, axe: str, open_watched: PageOpener, tmp_path: Path
) -> None:
    human_judge_spec(tmp_path, size=1)
    text = "\n".join(PAYLOADS.values()).encode("utf-8", "replace").decode()
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"id": "p", "label": 1, "question": text, "solution": "pass"}) + "\n", "utf-8"
    )
    with run_with_questions("spec.yaml", cwd=tmp_path) as run:
        page = open_watched(color_scheme=scheme, viewport={"width": width, "height": 800}).open(run.address)
        page.get_by_label("Name").wait_for()
        assert find_violations(page, axe) == []
        enter_name(page, "Ann")
        assert "<script>window.pwned=1</script>" in page.locator("#chat").inner_text()
        assert page.evaluate("window.pwned ?? null") is None
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert find_violations(page, axe) == []
        answer_next(page)
        page.get_by_role("radio").first.wait_for()
        assert page.evaluate("document.activeElement.type") == "radio"
        assert find_violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        answer_next(page)
        page.close()  # before the run ends
