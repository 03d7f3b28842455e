"""The page where readers label units: two readers, a reload, undo, revealed data and accessibility."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from runner.analysis.analyzer import load_analyzer
from runner.analysis.labels import LabelFile
from tests.browser.conftest import PageOpener
from tests.browser.test_accessibility import find_violations
from tests.browser.test_questions import enter_name
from tests.support.processes import wait_for_exit
from tests.support.question_process import run_with_questions
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

UNITS = 50
TONE = """\
name: tone
unit: message
applies: [prover]
question: |-
  Is the message of {{ agent_name }} polite?
  A short message is.
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_spec(spec_file(tmp_path, size=60, fine_tune=None), tmp_path / "results")
    (tmp_path / "tone.yaml").write_text(TONE)
    return only_run(tmp_path / "results")


def wait_for_count(page: Any, count: int) -> None:
    text = f"{count} of {UNITS} labeled."
    page.wait_for_function("text => document.getElementById('status').textContent.startsWith(text)", arg=text)


def label_page(page: Any, first: int, last: int) -> None:
    """Label the units from `first` up to `last` by keys, every third one with the second answer."""
    for number in range(first, last):
        wait_for_count(page, number)
        page.keyboard.press("2" if number % 3 == 0 else "1")
    wait_for_count(page, last)


def test_two_readers_label_50_units_with_a_reload_and_receive_only_texts(
    browser: Any, run: Path, tmp_path: Path
) -> None:
    received: dict[str, list[Any]] = {"Ann": [], "Ben": []}
    texts: list[str] = []
    pages = {}
    arguments = ("label", "run", "tone.yaml", "--units", str(UNITS), "--readers", "Ann", "Ben")
    with run_with_questions(*arguments[:1], run.name, *arguments[2:], cwd=tmp_path) as command:
        for name, states in received.items():
            page = browser.new_page()
            page.set_default_timeout(20_000)

            def record(response: Any, states: list[Any] = states) -> None:
                texts.append(response.text())
                if response.request.method == "POST" and not response.url.endswith("leave"):
                    states.append(json.loads(texts[-1]))

            page.on("response", record)
            page.goto(command.address)
            enter_name(page, name)
            pages[name] = page
        ann, ben = pages.values()
        label_page(ann, 0, 20)
        chat_before = ann.locator("#chat").inner_text()
        ann.reload()
        wait_for_count(ann, 20)
        ann.locator("#answer-form").wait_for()
        assert ann.locator("#chat").inner_text() == chat_before
        label_page(ben, 0, UNITS)
        label_page(ann, 20, UNITS)
        assert "You have labeled all units" in ann.locator("#status").inner_text()
        ann.keyboard.press("u")
        wait_for_count(ann, UNITS - 1)
        ann.keyboard.press("u")
        wait_for_count(ann, UNITS - 2)
        ann.keyboard.press("1")
        wait_for_count(ann, UNITS - 1)
        ann.keyboard.press("1")
        wait_for_count(ann, UNITS)
        texts += [page.content() for page in pages.values()]
        for page in pages.values():
            page.close()
        command.process.send_signal(signal.SIGINT)
        assert wait_for_exit(command.process)[0] == 0
    labels = LabelFile(run, load_analyzer(str(tmp_path / "tone.yaml"))).current()
    answers = {name: {label.drawn: label.answer for label in labels if label.reader == name} for name in received}
    expected = {number: "no" if number % 3 == 0 else "yes" for number in range(UNITS)}
    assert answers == {"Ann": {**expected, 48: "yes", 49: "yes"}, "Ben": expected}
    # Both readers got the same texts in the same order, and nothing but the texts.
    questions = {
        name: [state["question"] for state in states if state["question"]] for name, states in received.items()
    }
    shown_texts = {
        name: list(dict.fromkeys(json.dumps(q["messages"]) for q in reader_questions))
        for name, reader_questions in questions.items()
    }
    assert shown_texts["Ann"] == shown_texts["Ben"]
    for state in (*received["Ann"], *received["Ben"]):
        assert state.keys() == {"question", "has_ended", "others", "labeled", "total"}
        assert (state["has_ended"], state["others"], state["total"]) == (False, 0, UNITS)
    for question in (*questions["Ann"], *questions["Ben"]):
        assert question.keys() == {"id", "messages", "fields"}
        (field,) = question["fields"]
        assert (field["options"], field["default"]) == (["yes", "no"], "")
        assert {message.get("role") for message in question["messages"][:2]} == {"question", "solution"}
        assert all(message.keys() <= {"role", "name", "content"} for message in question["messages"])
    received_text = "".join(texts)
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    ids = [f'"{row["id"]}' for row in rows] + [label.unit_id for label in labels] + [run.name]
    secrets = (
        *ids,
        "stratum",
        "probability",
        "instrument",
        "accept",
        "reject",
        '"stance":',
        "decision",
        '"label":0',
        '"label":1',
        "truth",
    )
    assert [secret for secret in secrets if secret in received_text] == []
    assert "Ben" not in "".join(map(json.dumps, received["Ann"]))


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_the_label_page(
    scheme: str, width: int, axe: str, run: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    with run_with_questions("label", run.name, "tone.yaml", "--units", str(UNITS), cwd=tmp_path) as command:
        page = open_watched(color_scheme=scheme, viewport={"width": width, "height": 800}).open(command.address)
        page.get_by_label("Name").wait_for()
        assert find_violations(page, axe) == []
        enter_name(page, "Ann")
        assert find_violations(page, axe) == []
        label_page(page, 0, 2)
        page.get_by_role("button", name="Take back").click()
        wait_for_count(page, 1)
        assert find_violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()
