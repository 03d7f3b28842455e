"""A loopback provider that fine-tunes: files, jobs that go as they are told, and models that answer by their training.

    python -m tests.support.servers.fine_tune --options JSON

As `tests.support.servers.batch`, and besides:

    POST /v1/files                   GET /v1/files/{id}              GET /v1/models
    POST /v1/fine_tuning/jobs        GET /v1/fine_tuning/jobs        GET /v1/fine_tuning/jobs/{id}
    GET /jobs    GET /files    GET /log    POST /set (a job's id and the fields to change)

A job's model is called ft:<root model>:<suffix>:<trainings>x<hash>: how often it was trained, and a hash of what on.
The name depends on nothing but the job's body and its file, so equal runs against two servers get equal names. A
verifier that decides is right with a probability that grows with the trainings of its model.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson

from tests.support.servers import batch
from tests.support.servers.batch import _error, _made, _uploaded
from tests.support.servers.chat import ACCEPT, REJECT
from tests.support.subprocess_server import serve

JOBS = ["fine_tuning", "jobs"]
FAULTS = {
    "error": (500, None, "The server had an error"),
    "busy": (429, "rate_limit_exceeded", "This fine-tune request has been rate-limited."),
    "daily": (429, "daily_rate_limit_exceeded", "You have reached the maximum of 8 fine-tuning requests per day."),
    "broke": (429, "insufficient_quota", "You exceeded your current quota, check your billing details."),
    "forbidden": (403, "training_not_available", "Your organization may no longer create fine-tuning jobs."),
    "unauthorized": (401, "invalid_api_key", "Incorrect API key provided"),
    "unknown_model": (404, "model_not_found", "The model does not exist"),
    "policy": (400, "content_policy_violation", "Refused by policy"),
    "too_large": (413, None, "Too large"),
    "no_route": (404, None, "Not Found"),
}
"""Answers instead of the thing; `drop`, `html`, `empty` and `list` are others."""
WORKS = ("late", "after_drop", "after_error", "after_html")
"""Faults of an answer alone: the thing is done. `late` is answered after `hang` seconds."""

RIGHT = re.compile(r"returns? x \+ (\d+)")


@dataclass
class Options(batch.Options):
    script: dict[str, Any] = field(default_factory=dict)
    """How every job goes; see `Script`."""
    scripts: list[dict[str, Any]] = field(default_factory=list)
    """Scripts of the next jobs, one each, before `script`."""
    uploads: list[str] = field(default_factory=list)
    """What becomes of the next uploads, one each: "" (works), a key of FAULTS, `drop`, `html`, or one of WORKS."""
    creates: list[str] = field(default_factory=list)
    """The same for the next creations of jobs."""
    looks: list[str] = field(default_factory=list)
    """The same for the next looks at a job."""
    lists: list[str] = field(default_factory=list)
    """The same for the next lists of jobs."""
    asks_to_wait: str | None = None
    """Retry-After of `busy` and `daily`."""
    hidden: int = 0
    """A new job is in none of the next so many lists."""
    echoes_metadata: bool = True
    pages: bool = True
    """Without pages the list has neither `has_more` nor an `after`."""
    least_examples: int = 10
    """A file with fewer makes its job fail."""
    base_models: list[str] = field(default_factory=lambda: ["tiny", "small"])
    """What /v1/models lists besides the fine-tuned ones; chat answers for any name that does not begin with ft:."""
    accuracy: float = 0.5
    gain: float = 0.12
    """How often an untrained verifier that decides is right, and by how much more with each training (to 0.98)."""


@dataclass
class Script:
    """One job. It ends after so many looks, and not before so many seconds."""

    through: list[str] = field(default_factory=lambda: ["validating_files", "queued", "running"])
    """Its status at each look until it ends; the last one stays."""
    looks: int = 1
    seconds: float = 0.0
    end: str | None = "succeeded"
    """None: never."""
    model: str | None = None
    """The new model's name; None: as usual; "": none at all."""
    error: dict[str, Any] | None = None


@dataclass
class Job:
    id: str
    body: dict[str, Any]
    script: Script
    model: str
    created: float
    hidden: int
    looks: int = 0
    status: str = "validating_files"
    error: dict[str, Any] | None = None


class FineTuneServer(batch.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.jobs: dict[str, Job] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.log: list[dict[str, Any]] = []
        self.keys: Counter[str] = Counter()
        self.models: Counter[str] = Counter()

    def seen(self, method: str, target: str, headers: dict[bytes, bytes]) -> None:
        if target.startswith("/v1"):
            key = headers.get(b"authorization", b"").decode("latin-1")
            self.keys[key] += 1
            shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
            if target != "/v1/chat/completions":
                self.log.append({"method": method, "target": target, "headers": shown})

    def stats(self) -> dict[str, Any]:
        return {
            **super().stats(), "jobs": len(self.jobs), "uploaded": len(self.about), "keys": self.keys,
            "models": self.models, "job_lists": self.counts["job lists"], "job_looks": self.counts["job looks"],
        }  # fmt: skip

    # Chat

    async def _chat(self, body: bytes, writer: asyncio.StreamWriter) -> bool:
        model = orjson.loads(body).get("model", "")
        self.models[model] += 1
        if model.startswith("ft:") and model not in self._trained():
            writer.write(_error(404, f"The model {model} does not exist", "model_not_found"))
            return True
        return await super()._chat(body, writer)

    def _reply(self, asked: dict[str, Any], digest: str) -> dict[str, Any]:
        reply = super()._reply(asked, digest)
        right = right_decision(asked["messages"])
        if right is not None:
            chance = min(self.options.accuracy + self.options.gain * trainings(asked["model"]), 0.98)
            for index, choice in enumerate(reply["choices"]):
                message = choice["message"]
                if message["content"] and message["content"].endswith((ACCEPT, REJECT)):
                    is_right = random.Random(f"right/{digest}/{index}").random() < chance
                    start = message["content"].rpartition("\n\n")[0]
                    message["content"] = f"{start}\n\n{right if is_right else {ACCEPT: REJECT, REJECT: ACCEPT}[right]}"
        return reply

    def _trained(self) -> set[str]:
        return {job.model for job in self.jobs.values() if job.status == "succeeded"}

    # Files and jobs

    def _api(
        self, method: str, path: str, body: bytes, headers: dict[bytes, bytes], writer: asyncio.StreamWriter
    ) -> bool:
        about = {"/jobs": self._jobs, "/files": lambda: list(self.about.values()), "/log": lambda: self.log}
        if path in about:
            writer.write(_made(about[path]()))
            return True
        if path == "/set":
            wanted = orjson.loads(body)
            job = self.jobs[wanted.pop("id")]
            job.script = Script(through=[], end=None)
            for name, value in wanted.items():
                setattr(job, name, value)
            writer.write(_made({}))
            return True
        parts = path.strip("/").split("/")[1:]
        if method == "POST" and parts == ["files"]:
            return self._faulty(self.options.uploads, lambda: self._upload(body, headers), writer)
        if method == "POST" and parts == JOBS:
            return self._faulty(self.options.creates, lambda: self._create_job(orjson.loads(body)), writer)
        if parts == JOBS:
            return self._faulty(self.options.lists, self._list, writer)
        if parts[:2] == JOBS and len(parts) == 3:
            return self._faulty(self.options.looks, lambda: self._look(parts[2]), writer)
        if parts == ["models"]:
            names = [*self.options.base_models, *sorted(self._trained())]
            data = [{"id": name, "object": "model", "created": 1, "owned_by": "loopback"} for name in names]
            writer.write(_made({"object": "list", "data": data}))
            return True
        return super()._api(method, path, body, headers, writer)

    def _faulty(self, faults: list[str], answer: Any, writer: asyncio.StreamWriter) -> bool:
        """Answer, or do what the next fault of the list says; the connection is kept where the result is true."""
        fault = faults.pop(0) if faults else ""
        if fault == "drop":
            return False
        if fault in ("html", "empty", "list"):
            writer.write(_odd(fault))
            return True
        if fault in FAULTS:
            status, code, message = FAULTS[fault]
            wait = self.options.asks_to_wait if fault in ("busy", "daily") else None
            writer.write(_error(status, message, code, **({"retry_after": wait} if wait is not None else {})))
            return True
        done = answer()
        if fault == "after_drop":
            return False
        if fault == "after_error":
            done = _error(500, "The server had an error")
        if fault == "after_html":
            done = _odd("html")
        if fault == "late":
            asyncio.get_running_loop().call_later(self.options.hang, writer.write, done)
            return True
        writer.write(done)
        return True

    def _upload(self, body: bytes, headers: dict[bytes, bytes]) -> bytes:
        data = _uploaded(body, headers[b"content-type"])
        found = re.search(rb'filename="([^"]*)"', body)
        purpose = re.search(rb'name="purpose"\r\n\r\n([^\r]*)', body)
        name = f"file-{len(self.files)}"
        self.files[name] = data
        self.about[name] = {
            "id": name, "object": "file", "bytes": len(data), "created_at": int(time.time()), "status": "processed",
            "filename": found.group(1).decode() if found else "", "purpose": purpose.group(1).decode() if purpose
            else "", "sha256": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
        return _made(self.about[name])

    def _create_job(self, asked: dict[str, Any]) -> bytes:
        file, model = asked["training_file"], asked["model"]
        if self.about.get(file, {}).get("purpose") != "fine-tune":
            return _error(400, f"invalid training_file: {file}", "invalid_training_file", "training_file")
        if model.startswith("ft:") and model not in self._trained():
            return _error(404, f"The model {model} does not exist", "model_not_found", "model")
        if not 0 <= asked.get("seed", 0) < 2**31 or len(asked.get("suffix") or "") > 64:
            return _error(400, "seed or suffix out of range", "invalid_value", "seed")
        script = Script(**(self.options.scripts.pop(0) if self.options.scripts else self.options.script))
        wrong = problem_of(self.files[file], asked["method"]["type"], self.options.least_examples)
        if wrong is not None:
            script = Script(through=["validating_files"], end="failed", error={
                "code": "invalid_training_file", "message": wrong, "param": "training_file"})  # fmt: skip
        usual = model_name(asked, self.about[file]["sha256"])
        job = Job(
            f"ftjob-{len(self.jobs)}", asked, script, usual if script.model is None else script.model, time.time(),
            self.options.hidden,
        )  # fmt: skip
        self.jobs[job.id] = job
        return _made(self._shown_job(job))

    def _list(self) -> bytes:
        self.counts["job lists"] += 1
        query = parse_qs(self.query)
        shown = []
        for job in reversed(self.jobs.values()):
            job.hidden -= 1
            if job.hidden < 0:
                shown.append(self._shown_job(job))
        if not self.options.pages:
            return _made({"object": "list", "data": shown})
        after = query.get("after", [""])[0]
        ids = [job["id"] for job in shown]
        start = ids.index(after) + 1 if after in ids else 0
        page = shown[start : start + min(int(query.get("limit", ["20"])[0]), 3)]  # small, so that pages are needed
        return _made({"object": "list", "data": page, "has_more": start + len(page) < len(shown)})

    def _look(self, name: str) -> bytes:
        self.counts["job looks"] += 1
        job = self.jobs.get(name)
        if job is None:
            return _error(404, f"Could not find fine tune: {name}", "fine_tune_not_found", "fine_tune_id")
        script = job.script
        late = job.looks >= script.looks and time.time() - job.created >= script.seconds
        if script.end is not None:
            if late:
                job.status = script.end
                job.error = script.error if script.end == "failed" else None
            else:
                job.status = script.through[min(job.looks, len(script.through) - 1)]
        elif script.through and job.looks < len(script.through):
            job.status = script.through[job.looks]
        job.looks += 1
        return _made(self._shown_job(job))

    def _shown_job(self, job: Job) -> dict[str, Any]:
        body, ended = job.body, job.status in ("succeeded", "failed", "cancelled")
        return {
            "id": job.id, "object": "fine_tuning.job", "created_at": int(job.created), "model": body["model"],
            "training_file": body["training_file"], "validation_file": None, "seed": body.get("seed", 0),
            "status": job.status, "method": body["method"], "result_files": [], "organization_id": "org-loopback",
            "finished_at": int(time.time()) if ended else None, "error": job.error, "hyperparameters": {},
            "trained_tokens": len(self.files[body["training_file"]]) // 4 if job.status == "succeeded" else None,
            "metadata": body.get("metadata") if self.options.echoes_metadata else None,
            "fine_tuned_model": (job.model or None) if job.status == "succeeded" else None,
        }  # fmt: skip

    def _jobs(self) -> list[dict[str, Any]]:
        return [
            {**self._shown_job(job), "body": job.body, "looks": job.looks,
             "sha256": self.about[job.body["training_file"]]["sha256"]}
            for job in self.jobs.values()
        ]  # fmt: skip


def _odd(kind: str) -> bytes:
    if kind == "html":
        page = b"<html>Bad gateway</html>"
        return b"HTTP/1.1 200 X\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page)
    return _made([] if kind == "list" else {})


def trainings(model: str) -> int:
    """How often a model was trained, from its name."""
    found = re.search(r":(\d+)x[0-9a-f]+$", model)
    return int(found.group(1)) if found else 0


def model_name(asked: dict[str, Any], sha256: str) -> str:
    base = asked["model"]
    root = base.split(":")[1] if base.startswith("ft:") else base
    what = orjson.dumps([base, asked["method"], asked.get("seed"), sha256], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(what).hexdigest()[:6]
    return f"ft:{root}:{asked.get('suffix') or ''}:{trainings(base) + 1}x{digest}"


def right_decision(messages: list[dict[str, Any]]) -> str | None:
    """The right verdict on a solution of `tests.support.play.dataset_file`; None where the messages show none."""
    found = RIGHT.findall("\n".join(str(message["content"]) for message in messages))
    return None if len(found) < 2 else ACCEPT if found[0] == found[1] else REJECT


def problem_of(data: bytes, method: str, least: int) -> str | None:
    """What is wrong with a training file."""
    wanted = {"messages"} if method == "supervised" else {"input", "preferred_output", "non_preferred_output"}
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if not wanted <= orjson.loads(line).keys():
                return f"line {number} lacks {', '.join(sorted(wanted))}"
        except (orjson.JSONDecodeError, AttributeError):
            return f"line {number} is no JSON object"
    return f"{len(lines)} examples are fewer than {least}" if len(lines) < least else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="{}")
    options = Options(**orjson.loads(parser.parse_args().options))
    asyncio.run(serve(FineTuneServer(options).connected, limit=1 << 24))
