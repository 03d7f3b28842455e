"""A loopback provider with chat completions, files and batches, which counts the tokens that it would charge for.

A batch gets the same answers as single calls. An answer is charged for even if it never arrives. See
`tests.support.servers.frame`.

    POST /v1/chat/completions    POST /v1/files       GET /v1/files/{id}/content
    POST /v1/batches             GET /v1/batches      GET /v1/batches/{id}
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.completions import Style, completion
from tests.support.servers.frame import (
    COMPLETIONS,
    DROPPED,
    Answer,
    Request,
    digest_of,
    error,
    json_answer,
    run_server,
)

_TOKEN = re.compile(r" ?[A-Za-z]{1,4}|\s+|.")
"""A token: at most four letters, a run of whitespace, or one other character."""

UNBILLED = {"rate_limit": 429, "rate_limit_wait": 429, "server_error": 500}
BILLED = ("drop", "half_body", "malformed", "hang")

FAULTS = {
    "error": error(500, "The server had an error"),
    "busy": error(429, "This fine-tune request has been rate-limited.", "rate_limit_exceeded"),
    "daily": error(429, "You have reached the maximum of 8 fine-tuning requests per day.", "daily_rate_limit_exceeded"),
    "broke": error(429, "You exceeded your current quota, check your billing details.", "insufficient_quota"),
    "forbidden": error(403, "Your organization may no longer create fine-tuning jobs.", "training_not_available"),
    "unauthorized": error(401, "Incorrect API key provided", "invalid_api_key"),
    "unknown_model": error(404, "The model does not exist", "model_not_found"),
    "policy": error(400, "Refused by policy", "content_policy_violation"),
    "too_large": error(413, "Too large"),
    "no_route": error(404, "Not Found"),
    "drop": DROPPED,
    "html": Answer(body=b"<html>Bad gateway</html>", content_type="text/html"),
    "empty": json_answer({}),
    "list": json_answer([]),
    "unfinished": json_answer({"object": "list", "data": [], "has_more": True}),
}
"""Responses to requests that have no effect."""
WORKS = {
    "after_drop": FAULTS["drop"],
    "after_error": FAULTS["error"],
    "after_html": FAULTS["html"],
    "after_empty": FAULTS["empty"],
}
"""Faulty responses to requests that take effect. The fault `late` is another: the response is sent after `hang`."""


@dataclass
class Options(frame.Options):
    chat: dict[str, Any] = field(default_factory=dict)
    """Fields of `tests.support.servers.completions.Style`."""
    latency: float = 0.0
    retry_after: str = "0.02"
    most_at_once: int | None = None
    """Maximum number of concurrent requests; others get the status 429."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of every response to a chat request."""
    refuses_n: bool = False
    most_n: int | None = None
    """Maximum number of answers to one request."""
    delay: float = 0.05
    """Time from the creation of a batch to its end."""
    shuffle: bool = False
    failing_lines: float = 0.0
    """Share of lines that fail in their first batch, with `failing_status` in the error file."""
    failing_status: int = 429
    expired_lines: float = 0.0
    """Share of lines that are not done when their first batch expires."""
    unlisted: bool = False
    """Whether expired lines are missing in both files."""
    invalid_batches: int = 0
    """Number of batches that fail validation."""
    batch_creates: list[str] = field(default_factory=list)
    """The faults of the next creations of batches: "" (none), a key of FAULTS or WORKS, or `late`."""
    batch_lists: list[str] = field(default_factory=list)
    """The faults of the next lists of batches."""
    batch_hidden: int = 0
    """Number of lists that lack a new batch."""
    asks_to_wait: str | None = None
    """The header Retry-After of the faults `busy` and `daily`."""
    forgotten: bool = False
    """Whether requests for a batch by its id get the status 404."""
    broken_outputs: int = 0
    """Number of output files whose last line is not valid JSON."""

    reported: dict[str, Any] | None = None
    """The usage that every answer reports instead of the true one; empty means that none is reported."""

    style: Style = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.style = Style(**self.chat)

    def kinds(self) -> Collection[str]:
        return (*UNBILLED, *BILLED)


class Server(frame.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.requested_lines: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.billed = {"prompt_tokens": 0, "completion_tokens": 0, "answers": 0}
        self.ns: list[int] = []
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.routes = {
            "POST /v1/files": self.upload,
            "GET /v1/files/{}/content": self._content,
            "POST /v1/batches": lambda request: self.faulty(self.options.batch_creates, lambda: self._create(request)),
            "GET /v1/batches": lambda request: self.faulty(self.options.batch_lists, lambda: self._list(request)),
            "GET /v1/batches/{}": self._get,
        }

    def stats(self) -> dict[str, Any]:
        counts = {name: self.counts[name] for name in ("chat", "files", "batches", "looks", "lists", "lines")}
        repeated_lines = sum(count > 1 for count in self.requested_lines.values())
        return {
            **super().stats(), **counts, "billed": self.billed, "ns": self.ns, "lines_twice": repeated_lines,
            "batch_sizes": [len(batch["lines"]) for batch in self.batches.values()],
        }  # fmt: skip

    def _bill_and_report(self, body: dict[str, Any], reply: dict[str, Any]) -> None:
        """Charge for the usage in an answer, or for the tokens of its texts if the answer reports another usage."""
        usage, reported = reply["usage"], self.options.reported
        if reported is not None:
            usage = {
                "prompt_tokens": sum(4 + len(_TOKEN.findall(message["content"])) for message in body["messages"]),
                "completion_tokens": sum(
                    len(_TOKEN.findall(choice["message"]["content"])) for choice in reply["choices"]
                ),
            }
            reply.pop("usage")
            reply |= {"usage": reported} if reported else {}
        self.billed["prompt_tokens"] += usage["prompt_tokens"]
        self.billed["completion_tokens"] += usage["completion_tokens"]
        self.billed["answers"] += 1

    # Chat

    async def complete(self, request: Request) -> Answer:
        options, body = self.options, request.json()
        self.counts["chat"] += 1
        self.ns.append(body.get("n") or 1)
        if options.most_at_once is not None and self.open > options.most_at_once:
            self.kinds["too_many"] += 1
            return error(429, "Rate limit reached", "rate_limit_exceeded")._replace(headers=options.headers)
        if options.refuses_n and (body.get("n") or 1) > 1:
            self.kinds["refused_n"] += 1
            return error(400, "Unsupported value: 'n' must be 1", "unsupported_value", param="n")
        digest = digest_of(request.body)
        kind = self.fault(options.style.seed, digest, self.count_attempt(digest))
        self.kinds[kind or "answer"] += 1
        if options.latency:
            await asyncio.sleep(options.latency)
        if kind in UNBILLED:
            wait = {"retry-after": options.retry_after} if kind == "rate_limit_wait" else {}
            return error(UNBILLED[kind], "Not now")._replace(headers=wait)
        reply = self.reply(body, digest)
        self._bill_and_report(body, reply)
        answer = Answer(body=orjson.dumps(reply), headers=options.headers)
        if kind == "hang":
            return DROPPED._replace(wait=options.hang)
        if kind == "half_body":
            return answer._replace(cut=len(answer.body) - 40)
        if kind == "malformed":
            return answer._replace(body=answer.body[:-20])
        return DROPPED if kind == "drop" else answer

    def reply(self, body: dict[str, Any], digest: str) -> dict[str, Any]:
        limited_body = {**body, "n": min(body.get("n") or 1, self.options.most_n or 10_000)}
        return completion(self.options.style, limited_body, digest, None)

    # Files and batches

    def faulty(self, faults: list[str], answer: Callable[[], Answer]) -> Answer:
        """Answer a request with the next fault of the list, if any."""
        fault = faults.pop(0) if faults else ""
        if fault in FAULTS:
            wait = self.options.asks_to_wait if fault in ("busy", "daily") else None
            return FAULTS[fault]._replace(headers={} if wait is None else {"retry-after": wait})
        response = answer()
        if fault == "late":
            return response._replace(wait=self.options.hang)
        return WORKS.get(fault, response)

    def upload(self, request: Request) -> Answer:
        self.counts["files"] += 1
        name = f"file-{len(self.files)}"
        self.files[name] = data = _parse_upload(request.body, request.headers[b"content-type"])
        filename = re.search(rb'filename="([^"]*)"', request.body)
        purpose = re.search(rb'name="purpose"\r\n\r\n([^\r]*)', request.body)
        self.uploads[name] = {
            "id": name, "object": "file", "bytes": len(data), "created_at": int(time.time()), "status": "processed",
            "filename": filename.group(1).decode() if filename else "", "purpose": purpose.group(1).decode()
            if purpose else "", "sha256": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
        return json_answer(self.uploads[name])

    def _content(self, request: Request, name: str) -> Answer:
        return Answer(body=self.files[name]) if name in self.files else _unknown(name)

    def _create(self, request: Request) -> Answer:
        body = request.json()
        self.counts["batches"] += 1
        lines = [orjson.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        self.counts["lines"] += len(lines)
        batch = {
            "id": f"batch_{len(self.batches)}", "lines": lines, "metadata": body.get("metadata"), "ends": None,
            "at": asyncio.get_running_loop().time(), "input": body["input_file_id"],
            "hidden": self.options.batch_hidden,
        }  # fmt: skip
        if self.options.invalid_batches > 0:
            self.options.invalid_batches -= 1
            batch["ends"] = {"status": "failed", "errors": {"object": "list", "data": [
                {"code": "invalid_json_line", "line": 1, "message": "This line is not parseable", "param": None}
            ]}}  # fmt: skip
        self.batches[batch["id"]] = batch
        return json_answer(self._describe(batch))

    def _list(self, request: Request) -> Answer:
        self.counts["lists"] += 1
        listed = []
        for batch in reversed(self.batches.values()):
            batch["hidden"] -= 1
            if batch["hidden"] < 0:
                listed.append(self._describe(batch))
        return json_answer({"object": "list", "data": listed, "has_more": False})

    def _get(self, request: Request, name: str) -> Answer:
        if name not in self.batches or self.options.forgotten:
            return _unknown(name)
        self.counts["looks"] += 1
        return json_answer(self._describe(self.batches[name]))

    def _describe(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["ends"] is None and asyncio.get_running_loop().time() - batch["at"] >= self.options.delay:
            batch["ends"] = self._end(batch)
        ends = batch["ends"] or {"status": "in_progress"}
        return {
            "id": batch["id"], "object": "batch", "endpoint": COMPLETIONS, "completion_window": "24h",
            "created_at": 1, "input_file_id": batch["input"], "metadata": batch["metadata"], **ends,
        }  # fmt: skip

    def _end(self, batch: dict[str, Any]) -> dict[str, Any]:
        options = self.options
        output, errors, expired = [], [], False
        for line in batch["lines"]:
            name = line["custom_id"]
            is_first = self.requested_lines[name] == 0
            self.requested_lines[name] += 1
            chance = random.Random(f"line/{name}").random() if is_first else 1.0
            row: dict[str, Any] = {"id": f"r-{name}", "custom_id": name, "response": None, "error": None}
            if chance < options.expired_lines:
                expired = True
                row["error"] = {"code": "batch_expired", "message": "This request could not be executed in time"}
                if not options.unlisted:
                    errors.append(row)
            elif chance < options.expired_lines + options.failing_lines:
                problem = {
                    "error": {"message": "Rate limit", "type": "t", "param": None, "code": "rate_limit_exceeded"}
                }
                row["response"] = {"status_code": options.failing_status, "request_id": "q", "body": problem}
                errors.append(row)
            else:
                body = self.reply(line["body"], digest_of(orjson.dumps(line["body"])))
                self._bill_and_report(line["body"], body)
                row["response"] = {"status_code": 200, "request_id": "q", "body": body}
                output.append(row)
        if options.shuffle:
            random.Random(batch["id"]).shuffle(output)
        result: dict[str, Any] = {"status": "expired" if expired else "completed"}
        for kind, rows in (("output", output), ("error", errors)):
            if rows:
                data = b"".join(orjson.dumps(row) + b"\n" for row in rows)
                if kind == "output" and options.broken_outputs > 0:
                    options.broken_outputs -= 1
                    data = data[:-30]
                self.files[f"file-{batch['id']}-{kind}"] = data
                result[f"{kind}_file_id"] = f"file-{batch['id']}-{kind}"
        return result


def _parse_upload(body: bytes, content_type: bytes) -> bytes:
    boundary = b"--" + content_type.partition(b"boundary=")[2].strip(b'"')
    for part in body.split(boundary):
        head, _, content = part.partition(b"\r\n\r\n")
        if b"filename=" in head:
            return content[:-2]
    raise ValueError("no file in the upload")


def _unknown(name: str) -> Answer:
    return error(404, f"no such thing: {name}")


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
