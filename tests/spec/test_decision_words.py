"""Decision formats with an impossible verdict are refused in new specs and accepted in saved ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.spec.loader import load_saved, load_spec
from tests.support.runs import run_spec
from tests.support.specs import spec_file

VERDICT = {"accept": "Verdict: yes", "reject": "Verdict: no"}


@pytest.mark.parametrize(
    ("decision_format", "keys", "message"),
    [
        ({"accept": "Decision: X", "reject": "decision: x"}, ["reject"], "no verdict would be reject"),
        ({"accept": "X", "reject": "X", "lenient": True}, ["marker", "reject"], "neither is part of the other"),
        ({"accept": "Decision: acc", "reject": "DECISION: ACCuse"}, ["reject"], "contains 'Decision: acc'"),
        (
            {"accept": "Decision: yes sir", "reject": "Decision: yes", "lenient": True},
            ["accept"],
            "no verdict would be accept",
        ),
        (VERDICT, ["marker"], "a marker that both texts contain, such as 'Verdict:'"),
        ({"reject": "No"}, ["marker"], "'No' does not contain the marker 'decision:'"),
    ],
)
def test_decision_format_with_an_impossible_verdict_is_refused(
    tmp_path: Path, decision_format: Any, keys: list[str], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(spec_file(tmp_path, size=2, decision_format=decision_format))
    assert [problem.key for problem in refused.value.problems] == [f"decision_format.{key}" for key in keys]
    assert message in refused.value.problems[-1].message


@pytest.mark.parametrize(
    "decision_format",
    [
        {**VERDICT, "marker": "verdict"},
        {"accept": "Decision: yes sir", "reject": "Decision: yes"},  # the longer text is searched first
        {"accept": "Decision: acc", "reject": "**Decision:** accuse", "lenient": True},  # only whole words match
    ],
)
def test_distinguishable_verdict_texts_are_accepted(tmp_path: Path, decision_format: Any) -> None:
    load_spec(spec_file(tmp_path, size=2, decision_format=decision_format))


PROTOCOL = """\
name: own
agents:
  prover: {role: prover, human_name: Expert}
  verifier: {role: verifier, human_name: Judge}
channels: {main: {members: [prover, verifier]}, side: {members: [prover, verifier]}}
cycle: [{speak: {verifier: [main]}}, {speak: {prover: [main]}}]
"""
HEADERS = "name: Judge, headers: {main: 'To all:', side: 'Aside:'}"


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"name: Judge": "name: Judge, scratchpad: 'Decision:'"}, "verifier.scratchpad", "part of 'Decision: accept'"),
        (
            {"name: Judge": f"{HEADERS}, scratchpad: To", "[main]}}, {": "[main, side]}}, {"},
            "verifier.scratchpad",
            "'To' is part of 'To all:', which must follow the private notes",
        ),
        (
            {
                "name: Expert": "name: Expert, scratchpad: Answer",
                "{prover: [main]}": "{prover: [main]}, states: answer",
            },
            "prover.scratchpad",
            "'Answer' is part of 'Answer:'",
        ),
        (
            {"name: Judge": HEADERS.replace("Aside:", "My decision:"), "[main]}}, {": "[main, side]}}, {"},
            "verifier.headers",
            "'My decision:' contains the marker of a verdict, 'decision:'",
        ),
    ],
)
def test_protocol_whose_answers_can_never_have_a_needed_text_is_refused(
    tmp_path: Path, changes: dict[str, str], key: str, message: str
) -> None:
    text = PROTOCOL
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "own.yaml").write_text(text)
    dataset = {"checker": {"by": "exact", "column": "gold"}} if "states" in text else {}
    with pytest.raises(SpecError) as refused:
        load_spec(spec_file(tmp_path, size=2, protocol={"use": "own.yaml"}, dataset=dataset))
    messages = [problem.message for problem in refused.value.problems if problem.key == f"agents.{key}"]
    assert [message in text for text in messages] == [True]


def test_header_with_the_marker_is_accepted_if_the_verifier_cannot_decide(tmp_path: Path) -> None:
    text = PROTOCOL.replace("name: Judge", HEADERS.replace("Aside:", "My decision:"))
    steps = "cycle: [{speak: {verifier: [main, side]}, may_decide: false}, {speak: {verifier: [main]}}, "
    (tmp_path / "own.yaml").write_text(text.replace("cycle: [{speak: {verifier: [main]}}, ", steps))
    load_spec(spec_file(tmp_path, size=2, protocol={"use": "own.yaml"}))


def test_saved_run_with_an_impossible_verdict_still_loads(tmp_path: Path) -> None:
    saved = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").path / "spec.yaml"
    saved.chmod(0o644)
    saved.write_text(saved.read_text().replace("Decision: accept", "Verdict: yes"))
    assert "Verdict: yes" in saved.read_text()
    assert load_saved(saved).experiment.decision_format.accept == "Verdict: yes"
