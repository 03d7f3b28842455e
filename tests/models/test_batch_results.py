"""Batch results with malformed lines or from misbehaving servers: stored answers, redacted secrets and errors."""

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
def _api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)


def make_line(name: str, text: str = "yes", **more: Any) -> bytes:
    body = {"choices": [{"finish_reason": "stop", "message": {"content": text}}], "model": "tiny"}
    return json.dumps({"custom_id": name, "response": {"status_code": 200, "body": body}, **more}).encode() + b"\n"


def make_results(*lines: bytes) -> BatchResults:
    batch_results = BatchResults()
    batch_results.add(io.BytesIO(b"".join(lines)))
    return batch_results


def find_text(batch_results: BatchResults, name: str) -> tuple[str, tuple[str, ...]]:
    row = batch_results.find_line(name)
    assert row is not None
    text: str = row.body["choices"][0]["message"]["content"]
    return text, row.altered


def test_every_readable_line_is_found_by_its_custom_id() -> None:
    batch_results = make_results(
        make_line("a"), b"not json\n", b"[]\n", b"\n", make_line("b", "no"), b'{"custom_id": 7}\n',
        b'{"custom_id": "c"}\n', make_line("d")[:-1],
    )  # fmt: skip
    assert [find_text(batch_results, name) for name in ("a", "b", "d")] == [("yes", ()), ("no", ()), ("yes", ())]
    row_without_body = batch_results.find_line("c")
    assert row_without_body is not None
    assert (row_without_body.body, row_without_body.status, row_without_body.error) == (None, 500, None)
    assert batch_results.find_line("e") is None
    batch_results.close()


@pytest.mark.parametrize("response", [None, 7, "text", [], {"status_code": "many"}, {"status_code": None}])
def test_response_of_an_invalid_type_is_a_failed_line(response: Any) -> None:
    row = make_results(make_line("a", response=response)).find_line("a")
    assert row is not None
    assert row.status == 500


def test_repaired_bytes_and_removed_secrets_are_noted_for_each_line() -> None:
    batch_results = make_results(
        make_line("bad", "?").replace(b"?", b"\xff"), b"\xef\xbb\xbf" + make_line("mark"), make_line("key", f"a {KEY}"),
        make_line("escaped", "?").replace(b"?", "".join(f"\\u{ord(c):04x}" for c in KEY).encode()),
        make_line("both", "? !").replace(b"?", "".join(f"\\u{ord(c):04x}" for c in KEY).encode())
        .replace(b"!", b"\xff"),
    )  # fmt: skip
    removed = "[secret removed]"
    assert find_text(batch_results, "bad") == ("\ufffd", ("bytes",))
    assert find_text(batch_results, "mark") == ("yes", ("bytes",))
    assert find_text(batch_results, "key") == (f"a {removed}", ("secret",))
    assert find_text(batch_results, "escaped") == (removed, ("secret",))
    assert find_text(batch_results, "both") == (f"{removed} \ufffd", ("bytes", "secret"))


# Complete batches


class _FinishedBatchServer(Server):
    """A server with one finished batch, whose result file has the given content."""

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
    server: _FinishedBatchServer, *requests: Request, earlier: Sequence[BatchRecord] = (), **options: Any
) -> list[Completion | BaseException]:
    """Send these requests concurrently and return their completions or errors."""

    async def write(record: BatchRecord) -> None:
        del record

    async def run_calls() -> list[Completion | BaseException]:
        async with run_in_event_loop(server.connected) as address:
            settings = model_settings(base_url=f"{address}/v1", batch=True, batch_wait=0.0, batch_poll=0.01)
            model = BatchModel(settings, "small", write, earlier, **options)
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    return await asyncio.gather(*map(model.complete, requests), return_exceptions=True)
            finally:
                await model.close()

    return asyncio.run(run_calls())


def complete_by_batch(content: bytes, **answer: Any) -> Completion:
    (outcome,) = complete_all(_FinishedBatchServer(content, **answer), REQUEST)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@pytest.mark.parametrize(
    ("response_options", "message", "downloads"),
    [
        ({"headers": {"content-encoding": "br"}}, "accepts only uncompressed answers", 3),
        ({"status": 503}, "answered 503", None),
        ({"status": 401}, "needs a key", 1),
    ],
)
@pytest.mark.parametrize("already_created", [False, True])
def test_unreadable_results_end_the_run_and_are_not_paid_for_again(
    response_options: dict[str, Any], message: str, downloads: int | None, already_created: bool
) -> None:
    server = _FinishedBatchServer(make_request_line("yes"), **response_options)
    notices: list[str | None] = []
    earlier_records = [BatchRecord("small", "i", (make_custom_id(REQUEST),), "b")] if already_created else []
    waits = TransientPolicy(attempts=3, total_seconds=0.1)
    (error,) = complete_all(server, REQUEST, earlier=earlier_records, waits=waits, notify=notices.append)
    assert isinstance(error, ProviderRefusal if downloads == 1 else RunError if downloads else ServerUnreachable)
    assert message in str(error)
    assert downloads is None or server.paths["/v1/files/f/content"] == downloads
    assert server.paths["/v1/batches"] == (0 if already_created else 1)
    # 503 is retried within a time limit; on a busy machine the first attempt may use it up.
    assert downloads is None or bool(notices) == (downloads > 1)


def test_missing_temporary_folder_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    server = _FinishedBatchServer(make_request_line("yes"))
    (error,) = complete_all(server, REQUEST)
    assert isinstance(error, RunError)
    assert "cannot store a file of batch results in the temporary folder" in str(error)
    assert server.paths["/v1/files/f/content"] == 1


def make_custom_id(request: Request) -> str:
    return custom_id(request, chat_completions_body(model_settings(), request.messages))


def make_request_line(text: str) -> bytes:
    return make_line(make_custom_id(REQUEST), text)


DEEP: Any = json.loads("[" * 300 + "]" * 300)


@pytest.mark.parametrize("place", ["beside the answer", "in the answer", "in the place of the body"])
def test_deeply_nested_line_does_not_affect_other_lines(place: str) -> None:
    line_data = json.loads(make_request_line("yes"))
    body = line_data["response"]["body"]
    if place == "beside the answer":
        body["more"] = DEEP
    elif place == "in the answer":
        body["choices"][0]["more"] = DEEP
    else:
        line_data["response"]["body"] = DEEP
    other_request = Request("small", CHAT, SAMPLE._replace(round=1))
    content = json.dumps(line_data).encode() + b"\n" + make_line(make_custom_id(other_request), "no")
    outcome, other_outcome = complete_all(_FinishedBatchServer(content), REQUEST, other_request)
    assert isinstance(other_outcome, Completion)
    assert other_outcome.choices[0].text == "no"
    if place == "in the place of the body":
        assert isinstance(outcome, TransientError)
    else:
        assert isinstance(outcome, Completion)
        assert outcome.choices[0].text == "yes"
        assert outcome.body is not None
        assert json.loads(outcome.body.json) == body


def test_batch_answer_is_redacted_and_marked_as_altered() -> None:
    completion = complete_by_batch(make_request_line(f"{KEY} and {base64.b64encode(KEY.encode()).decode()}"))
    assert KEY not in str(completion)
    assert base64.b64encode(KEY.encode()).decode() not in str(completion)
    assert completion.altered == ("secret",)


def test_batch_answer_with_invalid_utf8_is_repaired_and_stored() -> None:
    completion = complete_by_batch(make_request_line("? x").replace(b"?", b"\xff"))
    assert (completion.choices[0].text, completion.altered) == ("\ufffd x", ("bytes",))


def test_result_file_without_a_requests_line_fails_only_that_request() -> None:
    with pytest.raises(TransientError, match="without this call"):
        complete_by_batch(make_line("another"))
