"""A loopback provider that keeps accounts: chat completions, files and batches, and what it would bill for each.

    python -m tests.support.servers.batch --options JSON

Its first line on stdout is its port; it ends when its stdin closes. Answers are those of the chat server beside it, so
a run by batch and one by single calls get the same. What was answered is billed, also where the answer never arrives.

    POST /v1/chat/completions    POST /v1/files       GET /v1/files/{id}/content
    POST /v1/batches             GET /v1/batches      GET /v1/batches/{id}
    GET /stats                   POST /options
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers.chat import Options as Chat
from tests.support.servers.chat import _completion
from tests.support.subprocess_server import serve

UNBILLED = {"rate_limit": 429, "rate_limit_wait": 429, "server_error": 500}
BILLED = ("drop", "half_body", "malformed", "hang")


@dataclass
class Options:
    """How the server behaves. Times are seconds, shares are probabilities drawn from the request's hash."""

    chat: dict[str, Any] = field(default_factory=dict)
    """Options of `tests.support.servers.chat` that shape an answer: seed, decide, text ..."""
    latency: float = 0.0
    faults: dict[str, float] = field(default_factory=dict)
    """Kinds in `UNBILLED` and `BILLED`, drawn for each attempt of each body."""
    max_faults: int = 3
    retry_after: str = "0.02"
    hang: float = 30.0
    most_at_once: int | None = None
    """Above so many requests at once: 429."""
    headers: dict[str, str] = field(default_factory=dict)
    """With every answer to a chat request."""
    refuses_n: bool = False
    most_n: int | None = None
    """Never more answers than this to one request, whatever it asks for."""
    delay: float = 0.05
    """From the creation of a batch to its end."""
    shuffle: bool = False
    failing_lines: float = 0.0
    """Lines that end with a status code in the error file, the first time they are asked."""
    failing_status: int = 429
    expired_lines: float = 0.0
    """Lines that are not done when their batch expires, the first time they are asked."""
    unlisted: bool = False
    """Lines that expired are in neither file."""
    invalid_batches: int = 0
    """So many batches fail validation."""
    drop_creates: int = 0
    """So many times the connection is dropped after a batch was created."""
    forgotten: bool = False
    """No batch that was asked for by its id is known."""
    broken_outputs: int = 0
    """So many output files have a last line that is no JSON."""


def _made(data: Any, status: int = 200, **headers: str) -> bytes:
    body = data if isinstance(data, bytes) else orjson.dumps(data)
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def _error(status: int, message: str, code: str | None = None, param: str | None = None, **headers: str) -> bytes:
    return _made({"error": {"message": message, "type": "error", "param": param, "code": code}}, status, **headers)


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.bodies: Counter[str] = Counter()
        self.asked_lines: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.billed = {"prompt_tokens": 0, "completion_tokens": 0, "answers": 0}
        self.ns: list[int] = []
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.open = self.max_open = 0
        self.query = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.decode("latin-1").split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if headers.get(b"transfer-encoding") == b"chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        path, _, self.query = target.partition("?")
        if path == "/stats":
            writer.write(_made(self.stats()))
            return True
        if path == "/options":
            for name, value in orjson.loads(body).items():
                setattr(self.options, name, value)
            writer.write(_made({}))
            return True
        self.counts["requests"] += 1
        self.seen(method, target, headers)
        if path == "/v1/chat/completions":
            return await self._chat(body, writer)
        return self._api(method, path, body, headers, writer)

    def seen(self, method: str, target: str, headers: dict[bytes, bytes]) -> None:
        """Told of each request before it is answered."""

    def stats(self) -> dict[str, Any]:
        counts = {
            name: self.counts[name] for name in ("requests", "chat", "files", "batches", "looks", "lists", "lines")
        }
        twice = sum(count > 1 for count in self.asked_lines.values())
        return {
            **counts, "kinds": {k[1:]: v for k, v in self.counts.items() if k.startswith("/")}, "billed": self.billed,
            "open": self.open, "max_open": self.max_open, "ns": self.ns, "lines_twice": twice,
            "batch_sizes": [len(batch["lines"]) for batch in self.batches.values()],
        }  # fmt: skip

    def _bill(self, usage: dict[str, Any]) -> None:
        self.billed["prompt_tokens"] += usage["prompt_tokens"]
        self.billed["completion_tokens"] += usage["completion_tokens"]
        self.billed["answers"] += 1

    # Chat

    async def _chat(self, body: bytes, writer: asyncio.StreamWriter) -> bool:
        options, asked = self.options, orjson.loads(body)
        self.counts["chat"] += 1
        self.ns.append(asked.get("n") or 1)
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            if options.most_at_once is not None and self.open > options.most_at_once:
                self.counts["/too_many"] += 1
                writer.write(_error(429, "Rate limit reached", "rate_limit_exceeded", **options.headers))
                return True
            if options.refuses_n and (asked.get("n") or 1) > 1:
                self.counts["/refused_n"] += 1
                writer.write(_error(400, "Unsupported value: 'n' must be 1", "unsupported_value", "n"))
                return True
            digest = hashlib.sha256(body).hexdigest()[:32]
            attempt = self.bodies[digest]
            self.bodies[digest] += 1
            kind = self._drawn(digest, attempt)
            self.counts["/" + (kind or "answer")] += 1
            if options.latency:
                await asyncio.sleep(options.latency)
            if kind in UNBILLED:
                wait = {"retry-after": options.retry_after} if kind == "rate_limit_wait" else {}
                writer.write(_error(UNBILLED[kind], "Not now", None, **wait))
                return True
            reply = self._reply(asked, digest)
            self._bill(reply["usage"])
            if kind == "hang":
                await asyncio.sleep(options.hang)
                return False
            if kind == "drop":
                return False
            if kind == "half_body":
                writer.write(_made(reply)[:-40])
                await writer.drain()
                return False
            writer.write(_made(orjson.dumps(reply)[:-20] if kind == "malformed" else reply, **options.headers))
            return True
        finally:
            self.open -= 1

    def _drawn(self, digest: str, attempt: int) -> str | None:
        if attempt < self.options.max_faults:
            draw = random.Random(f"{self.options.chat.get('seed', 0)}/{digest}/{attempt}").random()
            for kind, probability in self.options.faults.items():
                draw -= probability
                if draw < 0:
                    return kind
        return None

    def _reply(self, asked: dict[str, Any], digest: str) -> dict[str, Any]:
        most = self.options.most_n
        given = {**asked, "n": min(asked.get("n") or 1, most or 10_000)}
        reply: dict[str, Any] = _completion(Chat(**self.options.chat), given, digest, None)
        return reply

    # Files and batches

    def _api(
        self, method: str, path: str, body: bytes, headers: dict[bytes, bytes], writer: asyncio.StreamWriter
    ) -> bool:
        parts = path.strip("/").split("/")[1:]
        if method == "POST" and parts == ["files"]:
            self.counts["files"] += 1
            name = f"file-{len(self.files)}"
            self.files[name] = _uploaded(body, headers[b"content-type"])
            size = len(self.files[name])
            writer.write(_made({"id": name, "object": "file", "bytes": size, "created_at": 1, "filename": "x.jsonl",
                                "purpose": "batch", "status": "processed"}))  # fmt: skip
        elif method == "POST" and parts == ["batches"]:
            batch = self._create(orjson.loads(body))
            if self.options.drop_creates > 0:
                self.options.drop_creates -= 1
                return False
            writer.write(_made(self._shown(batch)))
        elif parts == ["batches"]:
            self.counts["lists"] += 1
            shown = [self._shown(batch) for batch in reversed(self.batches.values())]
            writer.write(_made({"object": "list", "data": shown, "has_more": False}))
        elif parts[0] == "batches" and parts[1] in self.batches and not self.options.forgotten:
            self.counts["looks"] += 1
            writer.write(_made(self._shown(self.batches[parts[1]])))
        elif parts[0] == "files" and parts[-1] == "content" and parts[1] in self.files:
            writer.write(_made(self.files[parts[1]]))
        else:
            writer.write(_error(404, f"no such thing: {path}"))
        return True

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.counts["batches"] += 1
        lines = [orjson.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        self.counts["lines"] += len(lines)
        batch = {
            "id": f"batch_{len(self.batches)}", "lines": lines, "metadata": asked.get("metadata"), "ends": None,
            "at": asyncio.get_running_loop().time(), "input": asked["input_file_id"],
        }  # fmt: skip
        if self.options.invalid_batches > 0:
            self.options.invalid_batches -= 1
            batch["ends"] = {"status": "failed", "errors": {"object": "list", "data": [
                {"code": "invalid_json_line", "line": 1, "message": "This line is not parseable", "param": None}
            ]}}  # fmt: skip
        self.batches[batch["id"]] = batch
        return batch

    def _shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["ends"] is None and asyncio.get_running_loop().time() - batch["at"] >= self.options.delay:
            batch["ends"] = self._end(batch)
        ends = batch["ends"] or {"status": "in_progress"}
        return {
            "id": batch["id"], "object": "batch", "endpoint": "/v1/chat/completions", "completion_window": "24h",
            "created_at": 1, "input_file_id": batch["input"], "metadata": batch["metadata"], **ends,
        }  # fmt: skip

    def _end(self, batch: dict[str, Any]) -> dict[str, Any]:
        options = self.options
        output, errors, expired = [], [], False
        for line in batch["lines"]:
            name = line["custom_id"]
            first = self.asked_lines[name] == 0
            self.asked_lines[name] += 1
            draw = random.Random(f"line/{name}").random() if first else 1.0
            row: dict[str, Any] = {"id": f"r-{name}", "custom_id": name, "response": None, "error": None}
            if draw < options.expired_lines:
                expired = True
                row["error"] = {"code": "batch_expired", "message": "This request could not be executed in time"}
                if not options.unlisted:
                    errors.append(row)
            elif draw < options.expired_lines + options.failing_lines:
                problem = {
                    "error": {"message": "Rate limit", "type": "t", "param": None, "code": "rate_limit_exceeded"}
                }
                row["response"] = {"status_code": options.failing_status, "request_id": "q", "body": problem}
                errors.append(row)
            else:
                digest = hashlib.sha256(orjson.dumps(line["body"])).hexdigest()[:32]
                body = self._reply(line["body"], digest)
                self._bill(body["usage"])
                row["response"] = {"status_code": 200, "request_id": "q", "body": body}
                output.append(row)
        if options.shuffle:
            random.Random(batch["id"]).shuffle(output)
        found: dict[str, Any] = {"status": "expired" if expired else "completed"}
        for kind, rows in (("output", output), ("error", errors)):
            if rows:
                data = b"".join(orjson.dumps(row) + b"\n" for row in rows)
                if kind == "output" and options.broken_outputs > 0:
                    options.broken_outputs -= 1
                    data = data[:-30]
                self.files[f"file-{batch['id']}-{kind}"] = data
                found[f"{kind}_file_id"] = f"file-{batch['id']}-{kind}"
        return found


def _uploaded(body: bytes, content_type: bytes) -> bytes:
    boundary = b"--" + content_type.partition(b"boundary=")[2].strip(b'"')
    for part in body.split(boundary):
        head, _, content = part.partition(b"\r\n\r\n")
        if b"filename=" in head:
            return content[:-2]
    raise ValueError("no file in the upload")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="{}")
    options = Options(**orjson.loads(parser.parse_args().options))
    asyncio.run(serve(Server(options).connected, limit=1 << 24))
