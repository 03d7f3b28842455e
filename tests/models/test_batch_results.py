"""The results of a batch whose lines are odd, or whose server is: what is kept, and what is not told."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal, RunError, ServerUnreachable, TransientError
from runner.models.interface import Completion, Request
from runner.models.journal_records import BatchRecord
from runner.models.providers.batch_results import BatchResults
from runner.models.providers.openai_batch import BatchModel, custom_id
from runner.models.providers.openai_body import chat_completions_body
from runner.models.retry_policy import TransientPolicy
from tests.support.hang_guard import HANG_SECONDS
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.servers import frame
from tests.support.servers.frame import Answer, Server, json_answer
from tests.support.servers.in_loop import run_in_event_loop

KEY = "sk-Loop/back+0123456789abcdef"
REQUEST = Request("small", CHAT, SAMPLE)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)


def line(name: str, text: str = "yes", **more: Any) -> bytes:
    body = {"choices": [{"finish_reason": "stop", "message": {"content": text}}], "model": "tiny"}
    return json.dumps({"custom_id": name, "response": {"status_code": 200, "body": body}, **more}).encode() + b"\n"


def results(*lines: bytes) -> BatchResults:
    found = BatchResults()
    found.add(io.BytesIO(b"".join(lines)))
    return found


def text_of(found: BatchResults, name: str) -> tuple[str, tuple[str, ...]]:
    row = found.find_line(name)
    assert row is not None
    text: str = row.body["choices"][0]["message"]["content"]
    return text, row.altered


def test_every_line_that_can_be_read_is_found_by_its_name() -> None:
    found = results(
        line("a"), b"not json\n", b"[]\n", b"\n", line("b", "no"), b'{"custom_id": 7}\n', b'{"custom_id": "c"}\n',
        line("d")[:-1],
    )  # fmt: skip
    assert [text_of(found, name) for name in ("a", "b", "d")] == [("yes", ()), ("no", ()), ("yes", ())]
    empty = found.find_line("c")
    assert empty is not None
    assert (empty.body, empty.status, empty.error) == (None, 500, None)
    assert found.find_line("e") is None
    found.close()


@pytest.mark.parametrize("odd", [None, 7, "text", [], {"status_code": "many"}, {"status_code": None}])
def test_a_response_of_an_odd_type_is_a_failed_line(odd: Any) -> None:
    row = results(line("a", response=odd)).find_line("a")
    assert row is not None
    assert row.status == 500


def test_lines_are_mended_and_noted_as_answers_are() -> None:
    found = results(
        line("bad", "?").replace(b"?", b"\xff"), b"\xef\xbb\xbf" + line("mark"), line("key", f"a {KEY}"),
        line("escaped", "?").replace(b"?", "".join(f"\\u{ord(c):04x}" for c in KEY).encode()),
        line("both", "? !").replace(b"?", "".join(f"\\u{ord(c):04x}" for c in KEY).encode()).replace(b"!", b"\xff"),
    )  # fmt: skip
    removed = "[secret removed]"
    assert text_of(found, "bad") == ("\ufffd", ("bytes",))
    assert text_of(found, "mark") == ("yes", ("bytes",))
    assert text_of(found, "key") == (f"a {removed}", ("secret",))
    assert text_of(found, "escaped") == (removed, ("secret",))
    assert text_of(found, "both") == (f"{removed} \ufffd", ("bytes", "secret"))


# A whole batch


class _Batches(Server):
    """One batch, whose result file is what the test says."""

    def __init__(self, content: bytes, **answer: Any) -> None:
        super().__init__(frame.Options())
        done = {"id": "b", "object": "batch", "status": "completed", "output_file_id": "f", "metadata": {}}
        self.routes = {
            "POST /v1/files": lambda _: json_answer({"id": "f"}),
            "POST /v1/batches": lambda _: json_answer(done),
            "GET /v1/batches/{}": lambda *_: json_answer(done),
            "GET /v1/files/{}/content": lambda *_: Answer(body=content, **answer),
        }


def complete_all(
    server: _Batches, *requests: Request, earlier: Sequence[BatchRecord] = (), **options: Any
) -> list[Completion | BaseException]:
    """What becomes of these requests at once."""

    async def write(record: BatchRecord) -> None:
        del record

    async def go() -> list[Completion | BaseException]:
        async with run_in_event_loop(server.connected) as address:
            chosen = model_settings(base_url=f"{address}/v1", batch=True, batch_wait=0.0, batch_poll=0.01)
            model = BatchModel(chosen, "small", write, earlier, **options)
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    return await asyncio.gather(*map(model.complete, requests), return_exceptions=True)
            finally:
                await model.close()

    return asyncio.run(go())


def batched(content: bytes, **answer: Any) -> Completion:
    (found,) = complete_all(_Batches(content, **answer), REQUEST)
    if isinstance(found, BaseException):
        raise found
    return found


@pytest.mark.parametrize(
    ("down", "said", "looks"),
    [
        ({"headers": {"content-encoding": "br"}}, "accepts only uncompressed answers", 3),
        ({"status": 503}, "answered 503", None),
        ({"status": 401}, "does not accept the key", 1),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_results_that_cannot_be_taken_end_the_run_and_are_not_bought_again(
    down: dict[str, Any], said: str, looks: int | None, earlier: bool
) -> None:
    server = _Batches(own_line("yes"), **down)
    told: list[str | None] = []
    before = [BatchRecord("small", "i", (name_of(REQUEST),), "b")] if earlier else []
    waits = TransientPolicy(attempts=3, total_seconds=0.1)
    (error,) = complete_all(server, REQUEST, earlier=before, waits=waits, notify=told.append)
    assert isinstance(error, ProviderRefusal if looks == 1 else RunError if looks else ServerUnreachable)
    assert said in str(error)
    assert looks is None or server.paths["/v1/files/f/content"] == looks
    assert server.paths["/v1/batches"] == (0 if earlier else 1)
    # 503 is retried within a time, which a busy machine may need for the first attempt.
    assert looks is None or bool(told) == (looks > 1)


def test_results_without_room_on_this_machine_end_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    server = _Batches(own_line("yes"))
    (error,) = complete_all(server, REQUEST)
    assert isinstance(error, RunError)
    assert "cannot store a file of batch results in the temporary folder" in str(error)
    assert server.paths["/v1/files/f/content"] == 1


def name_of(request: Request) -> str:
    return custom_id(request, chat_completions_body(model_settings(), request.messages))


def own_line(text: str) -> bytes:
    return line(name_of(REQUEST), text)


DEEP: Any = json.loads("[" * 300 + "]" * 300)


@pytest.mark.parametrize("where", ["beside the answer", "in the answer", "in the place of the body"])
def test_a_line_that_is_too_deep_is_no_matter_of_the_others(where: str) -> None:
    odd = json.loads(own_line("yes"))
    body = odd["response"]["body"]
    if where == "beside the answer":
        body["more"] = DEEP
    elif where == "in the answer":
        body["choices"][0]["more"] = DEEP
    else:
        odd["response"]["body"] = DEEP
    other = Request("small", CHAT, SAMPLE._replace(round=1))
    content = json.dumps(odd).encode() + b"\n" + line(name_of(other), "no")
    ours, theirs = complete_all(_Batches(content), REQUEST, other)
    assert isinstance(theirs, Completion)
    assert theirs.choices[0].text == "no"
    if where == "in the place of the body":
        assert isinstance(ours, TransientError)
    else:
        assert isinstance(ours, Completion)
        assert ours.choices[0].text == "yes"
        assert ours.body is not None
        assert json.loads(ours.body.json) == body


def test_an_answer_by_batch_has_no_secret_and_says_that_it_had_one() -> None:
    completion = batched(own_line(f"{KEY} and {base64.b64encode(KEY.encode()).decode()}"))
    assert KEY not in str(completion)
    assert base64.b64encode(KEY.encode()).decode() not in str(completion)
    assert completion.altered == ("secret",)


def test_an_answer_by_batch_is_kept_whatever_its_bytes() -> None:
    completion = batched(own_line("? x").replace(b"?", b"\xff"))
    assert (completion.choices[0].text, completion.altered) == ("\ufffd x", ("bytes",))


def test_a_result_file_without_our_line_fails_our_call_alone() -> None:
    with pytest.raises(TransientError, match="without this call"):
        batched(line("another"))
