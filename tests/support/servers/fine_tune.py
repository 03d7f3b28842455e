"""A loopback provider that fine-tunes: files, scripted jobs, and models whose accuracy depends on their training.

It has the paths of `tests.support.servers.batch`, and:

    GET /v1/models    POST /v1/fine_tuning/jobs    GET /v1/fine_tuning/jobs    GET /v1/fine_tuning/jobs/{id}
    GET /jobs    GET /files    POST /set (a job's id and the fields to change)

The model of a job is called ft:<root model>:<suffix>:<number of trainings>x<hash of the data>. The name depends only on
the body and the file of the job, so equal runs with two servers get equal names. The probability that a verifier
decides correctly grows with the number of trainings of its model.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers import batch
from tests.support.servers.batch import FAULTS, WORKS
from tests.support.servers.completions import ACCEPT, REJECT
from tests.support.servers.frame import COMPLETIONS, Answer, Request, error, json_answer, run_server

RETURNED_VALUE = re.compile(r"returns? x \+ (\d+)")


@dataclass
class Options(batch.Options):
    script: dict[str, Any] = field(default_factory=dict)
    """Fields of the `Script` of every job."""
    scripts: list[dict[str, Any]] = field(default_factory=list)
    """Fields of the scripts of the next jobs, which are used before `script`."""
    uploads: list[str] = field(default_factory=list)
    """The faults of the next uploads: "" (none), a key of FAULTS or WORKS, or `late`."""
    creates: list[str] = field(default_factory=list)
    """The faults of the next creations of jobs."""
    looks: list[str] = field(default_factory=list)
    """The faults of the next requests for a job."""
    lists: list[str] = field(default_factory=list)
    """The faults of the next lists of jobs."""
    hidden: int = 0
    """Number of lists that lack a new job."""
    echoes_metadata: bool = True
    pages: bool = True
    """Whether lists of jobs have pages. Otherwise they lack `has_more` and ignore `after`."""
    least_examples: int = 10
    """Minimum number of examples; a job with fewer fails."""
    base_models: list[str] = field(default_factory=lambda: ["tiny", "small"])
    """Additional models in /v1/models. Chat completions accept any name that does not start with ft:."""
    accuracy: float = 0.5
    gain: float = 0.12
    """The accuracy of an untrained verifier, and the increase with each training (up to 0.98)."""
    record: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = {*self.uploads, *self.creates, *self.looks, *self.lists} - {"", "late", *FAULTS, *WORKS}
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")


@dataclass
class Script:
    """The course of a job. It ends after `looks` requests for it, but not before `seconds`."""

    through: list[str] = field(default_factory=lambda: ["validating_files", "queued", "running"])
    """The status at each request until the end; the last one is repeated."""
    looks: int = 1
    seconds: float = 0.0
    end: str | None = "succeeded"
    """The final status; None means that the job never ends."""
    model: str | None = None
    """The name of the new model; None means the usual name, and "" means no model."""
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


class Server(batch.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.jobs: dict[str, Job] = {}
        self.models: Counter[str] = Counter()
        self.control_routes |= {
            "/jobs": lambda request: json_answer(self._jobs()),
            "/files": lambda request: json_answer(list(self.uploads.values())),
            "/set": self._set,
        }
        self.routes |= {
            "POST /v1/files": lambda request: self.faulty(self.options.uploads, lambda: self.upload(request)),
            "POST /v1/fine_tuning/jobs": lambda request: self.faulty(
                self.options.creates, lambda: self._create_job(request.json())
            ),
            "GET /v1/fine_tuning/jobs": lambda request: self.faulty(
                self.options.lists, lambda: self._list_jobs(request)
            ),
            "GET /v1/fine_tuning/jobs/{}": lambda request, name: self.faulty(
                self.options.looks, lambda: self._get_job(name)
            ),
            "GET /v1/models": self._list_models,
        }

    def is_recorded(self, request: Request) -> bool:
        return request.path != COMPLETIONS

    def stats(self) -> dict[str, Any]:
        return {**super().stats(), "models": self.models}

    # Chat

    async def complete(self, request: Request) -> Answer:
        model = request.json().get("model", "")
        self.models[model] += 1
        if model.startswith("ft:") and model not in self._trained():
            return error(404, f"The model {model} does not exist", "model_not_found")
        return await super().complete(request)

    def reply(self, body: dict[str, Any], digest: str) -> dict[str, Any]:
        reply = super().reply(body, digest)
        expected_verdict = right_decision(body["messages"])
        if expected_verdict is not None:
            chance = min(self.options.accuracy + self.options.gain * count_trainings(body["model"]), 0.98)
            for index, choice in enumerate(reply["choices"]):
                message = choice["message"]
                if message["content"] and message["content"].endswith((ACCEPT, REJECT)):
                    is_right = random.Random(f"right/{digest}/{index}").random() < chance
                    start = message["content"].rpartition("\n\n")[0]
                    wrong_verdict = {ACCEPT: REJECT, REJECT: ACCEPT}[expected_verdict]
                    message["content"] = f"{start}\n\n{expected_verdict if is_right else wrong_verdict}"
        return reply

    def _trained(self) -> set[str]:
        return {job.model for job in self.jobs.values() if job.status == "succeeded"}

    # Models, files and jobs

    def _list_models(self, request: Request) -> Answer:
        names = [*self.options.base_models, *sorted(self._trained())]
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "loopback"} for name in names]
        return json_answer({"object": "list", "data": data})

    def _create_job(self, body: dict[str, Any]) -> Answer:
        file, model = body["training_file"], body["model"]
        if self.uploads.get(file, {}).get("purpose") != "fine-tune":
            return error(400, f"invalid training_file: {file}", "invalid_training_file", param="training_file")
        if model.startswith("ft:") and model not in self._trained():
            return error(404, f"The model {model} does not exist", "model_not_found", param="model")
        if not 0 <= body.get("seed", 0) < 2**31 or len(body.get("suffix") or "") > 64:
            return error(400, "seed or suffix out of range", "invalid_value", param="seed")
        script = Script(**(self.options.scripts.pop(0) if self.options.scripts else self.options.script))
        problem = find_problem(self.files[file], body["method"]["type"], self.options.least_examples)
        if problem is not None:
            script = Script(through=["validating_files"], end="failed", error={
                "code": "invalid_training_file", "message": problem, "param": "training_file"})  # fmt: skip
        new_model = make_model_name(body, self.uploads[file]["sha256"]) if script.model is None else script.model
        job = Job(f"ftjob-{len(self.jobs)}", body, script, new_model, time.time(), self.options.hidden)
        self.jobs[job.id] = job
        return json_answer(self._describe_job(job))

    def _list_jobs(self, request: Request) -> Answer:
        after = request.query_value("after")
        listed = []
        for job in reversed(self.jobs.values()):
            job.hidden -= not after  # once for each listing, not for each of its pages
            if job.hidden < 0:
                listed.append(self._describe_job(job))
        if not self.options.pages:
            return json_answer({"object": "list", "data": listed})
        ids = [job["id"] for job in listed]
        start = ids.index(after) + 1 if after in ids else 0
        page = listed[
            start : start + min(int(request.query_value("limit", "20")), 3)
        ]  # small, so that pages are needed
        return json_answer({"object": "list", "data": page, "has_more": start + len(page) < len(listed)})

    def _get_job(self, name: str) -> Answer:
        job = self.jobs.get(name)
        if job is None:
            return error(404, f"Could not find fine tune: {name}", "fine_tune_not_found", param="fine_tune_id")
        script = job.script
        is_over = job.looks >= script.looks and time.time() - job.created >= script.seconds
        if script.end is not None:
            if is_over:
                job.status = script.end
                job.error = script.error if script.end == "failed" else None
            else:
                job.status = script.through[min(job.looks, len(script.through) - 1)]
        elif script.through and job.looks < len(script.through):
            job.status = script.through[job.looks]
        job.looks += 1
        return json_answer(self._describe_job(job))

    def _describe_job(self, job: Job) -> dict[str, Any]:
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

    def _set(self, request: Request) -> Answer:
        fields = request.json()
        job = self.jobs[fields.pop("id")]
        job.script = Script(through=[], end=None)
        for name, value in fields.items():
            setattr(job, name, value)
        return json_answer({})

    def _jobs(self) -> list[dict[str, Any]]:
        return [
            {**self._describe_job(job), "body": job.body, "looks": job.looks,
             "sha256": self.uploads[job.body["training_file"]]["sha256"]}
            for job in self.jobs.values()
        ]  # fmt: skip


def count_trainings(model: str) -> int:
    """Return how often a model was trained, from its name."""
    matches = re.search(r":(\d+)x[0-9a-f]+$", model)
    return int(matches.group(1)) if matches else 0


def make_model_name(body: dict[str, Any], sha256: str) -> str:
    base = body["model"]
    root = base.split(":")[1] if base.startswith("ft:") else base
    content = orjson.dumps([base, body["method"], body.get("seed"), sha256], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(content).hexdigest()[:6]
    return f"ft:{root}:{body.get('suffix') or ''}:{count_trainings(base) + 1}x{digest}"


def right_decision(messages: list[dict[str, Any]]) -> str | None:
    """Return the right verdict on a solution of `tests.support.specs.dataset_file`, or None if there is no solution."""
    matches = RETURNED_VALUE.findall("\n".join(str(message["content"]) for message in messages))
    return None if len(matches) < 2 else ACCEPT if matches[0] == matches[1] else REJECT


def find_problem(data: bytes, method: str, least: int) -> str | None:
    """Return a problem of a training file, or None."""
    expected = {"messages"} if method == "supervised" else {"input", "preferred_output", "non_preferred_output"}
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if not expected <= orjson.loads(line).keys():
                return f"line {number} lacks {', '.join(sorted(expected))}"
        except (orjson.JSONDecodeError, AttributeError):
            return f"line {number} is not a JSON object"
    return f"{len(lines)} examples are fewer than {least}" if len(lines) < least else None


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
