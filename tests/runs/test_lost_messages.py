"""Messages that a server's chat template drops are noticed by the token count; dense texts are not reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.game.prompts.chat_format import ChatFormat
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.plausible_usage import CHECKED_ANSWERS, DroppedMessageCheck
from runner.models.settings import ModelSettings
from runner.runs.execution.server_notes import ServerProblemDetector
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

OPENAI = {"m": {"chat_format": "openai"}}
LOST = "the server of model group m counted 10 prompt tokens in "


def make_request(*texts: str, round_: int = 0) -> Request:
    messages = [{"role": "user", "content": text} for text in texts]
    return Request("m", messages, SampleKey("p0", 0, round_, "verifier", 0))  # type: ignore[arg-type]


def make_answer(tokens: int, *, cached: int = 0, estimated: bool = False, from_cache: bool = False) -> Completion:
    return Completion((), "tiny", Usage(tokens, 1, cached, estimated), from_cache=from_cache)


@pytest.mark.full
def test_a_dropped_message_is_reported_once_with_advice(tmp_path: Path) -> None:
    with run_chat_server(drops_system=True) as server:
        spec_file(tmp_path, server.base_url, size=3, models=OPENAI)
        done = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
        second = nip_run_here("spec.yaml", "--again", cwd=tmp_path)
    dropped_notes = [note for note in json.loads(done.stdout)[0]["notes"] if note.startswith(LOST)]
    assert len(dropped_notes) == 1
    assert "(system; verifier in round 0 on p" in dropped_notes[0]
    assert "try models.m.chat_format=alternating, and models.m.system_role=user, if" in dropped_notes[0]
    assert (done.stderr.count(LOST), second.stderr.count(LOST)) == (1, 1)
    logs = [path.read_text("utf-8").count(LOST) for path in sorted(tmp_path.rglob("run.log"))]
    assert logs == [1, 1]


@pytest.mark.parametrize(
    ("chat_format", "system_role", "advice"),
    [
        ("alternating", "system", "; try models.m.system_role=user, if the model knows no system messages. "),
        ("openai", "user", "; try models.m.chat_format=alternating. "),
        ("alternating", "user", "; check the server's chat template, or use another model. "),
    ],
)
def test_advice_does_not_repeat_current_settings(chat_format: ChatFormat, system_role: Any, advice: str) -> None:
    notes: list[str] = []
    settings = ModelSettings(model="x", chat_format=chat_format, system_role=system_role)
    ServerProblemDetector({"m": settings}, notes).check_answer(
        make_request("many different words " * 60), make_answer(10)
    )
    (note,) = notes
    assert advice in note


@pytest.mark.sample(1)
@pytest.mark.parametrize("chat_format", ["openai", "alternating"])
def test_following_the_advice_removes_the_note(tmp_path: Path, chat_format: str) -> None:
    models = {"m": {"chat_format": chat_format, "system_role": "user"}}
    with run_chat_server(drops_system=True) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=2, models=models), tmp_path / "results")
    assert [note for note in result.notes if "prompt tokens" in note] == []


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog; internationalization notwithstanding. " * 9, 130),
        ("该函数在输入为空列表时返回零，否则返回所有元素之和。" * 20, 260),
        ("この関数は空のリストに対してゼロを返します。" * 20, 240),
        ("Rechtsschutzversicherungsgesellschaften und Donaudampfschifffahrtsgesellschaft " * 9, 140),
        ("    " * 900 + "return x\n", 40),
        ("def f():\n" + ("\n        " * 30 + "x = 1\n") * 9, 60),
        ("=" * 4000 + "\n" + "-" * 4000, 130),
    ],
    ids=["english", "chinese", "japanese", "german", "blanks", "code", "rules"],
)
def test_dense_texts_are_not_reported_as_dropped_messages(text: str, tokens: int) -> None:
    assert len(text.encode()) > 400
    assert DroppedMessageCheck(["m"]).check(make_request(text), make_answer(tokens)) is None


def test_only_the_first_answers_with_token_counts_of_the_server_are_checked() -> None:
    long_request, short_answer = make_request("many different words " * 60), make_answer(10)
    assert DroppedMessageCheck(["m"]).check(long_request, short_answer) is not None
    assert DroppedMessageCheck([]).check(long_request, short_answer) is None
    for unchecked_answer in (
        make_answer(0),
        make_answer(10, estimated=True),
        make_answer(10, from_cache=True),
        make_answer(10, cached=200),
    ):
        assert DroppedMessageCheck(["m"]).check(long_request, unchecked_answer) is None
    check = DroppedMessageCheck(["m"])
    assert [check.check(long_request, make_answer(300)) for _ in range(CHECKED_ANSWERS - 1)] == [None] * (
        CHECKED_ANSWERS - 1
    )
    assert check.check(long_request, short_answer) is not None
    assert check.check(long_request, short_answer) is None
    assert DroppedMessageCheck(["m"]).check(make_request("a short text"), make_answer(1)) is None
