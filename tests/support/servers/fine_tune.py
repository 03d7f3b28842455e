"""A loopback provider that fine-tunes: files, jobs that go as they are told, and models that answer by their training.

As `tests.support.servers.batch`, and besides:

    GET /v1/models    POST /v1/fine_tuning/jobs    GET /v1/fine_tuning/jobs    GET /v1/fine_tuning/jobs/{id}
    GET /jobs    GET /files    POST /set (a job's id and the fields to change)

A job's model is called ft:<root model>:<suffix>:<trainings>x<hash>: how often it was trained, and a hash of what on.
The name depends on nothing but the job's body and its file, so equal runs against two servers get equal names. A
verifier that decides is right with a probability that grows with the trainings of its model.
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
from tests.support.servers.frame import COMPLETIONS, Answer, Request, answered, error, run_server

RIGHT = re.compile(r"returns? x \+ (\d+)")


@dataclass
class Options(batch.Options):
    script: dict[str, Any] = field(default_factory=dict)
    """How every job goes; see `Script`."""
    scripts: list[dict[str, Any]] = field(default_factory=list)
    """Scripts of the next jobs, one each, before `script`."""
    uploads: list[str] = field(default_factory=list)
    """What becomes of the next uploads, one each: "" (works), a key of FAULTS or WORKS, or `late`."""
    creates: list[str] = field(default_factory=list)
    """The same for the next creations of jobs."""
    looks: list[str] = field(default_factory=list)
    """The same for the next looks at a job."""
    lists: list[str] = field(default_factory=list)
    """The same for the next lists of jobs."""
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
    record: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = {*self.uploads, *self.creates, *self.looks, *self.lists} - {"", "late", *FAULTS, *WORKS}
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")


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


class Server(batch.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.jobs: dict[str, Job] = {}
        self.models: Counter[str] = Counter()
        self.asides |= {
            "/jobs": lambda request: answered(self._jobs()),
            "/files": lambda request: answered(list(self.uploads.values())),
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
                self.options.looks, lambda: self._look_at_job(name)
            ),
            "GET /v1/models": self._list_models,
        }

    def keeps(self, request: Request) -> bool:
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

    def reply(self, asked: dict[str, Any], digest: str) -> dict[str, Any]:
        reply = super().reply(asked, digest)
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

    # Models, files and jobs

    def _list_models(self, request: Request) -> Answer:
        names = [*self.options.base_models, *sorted(self._trained())]
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "loopback"} for name in names]
        return answered({"object": "list", "data": data})

    def _create_job(self, asked: dict[str, Any]) -> Answer:
        file, model = asked["training_file"], asked["model"]
        if self.uploads.get(file, {}).get("purpose") != "fine-tune":
            return error(400, f"invalid training_file: {file}", "invalid_training_file", param="training_file")
        if model.startswith("ft:") and model not in self._trained():
            return error(404, f"The model {model} does not exist", "model_not_found", param="model")
        if not 0 <= asked.get("seed", 0) < 2**31 or len(asked.get("suffix") or "") > 64:
            return error(400, "seed or suffix out of range", "invalid_value", param="seed")
        script = Script(**(self.options.scripts.pop(0) if self.options.scripts else self.options.script))
        wrong = problem_of(self.files[file], asked["method"]["type"], self.options.least_examples)
        if wrong is not None:
            script = Script(through=["validating_files"], end="failed", error={
                "code": "invalid_training_file", "message": wrong, "param": "training_file"})  # fmt: skip
        usual = model_name(asked, self.uploads[file]["sha256"])
        job = Job(
            f"ftjob-{len(self.jobs)}", asked, script, usual if script.model is None else script.model, time.time(),
            self.options.hidden,
        )  # fmt: skip
        self.jobs[job.id] = job
        return answered(self._shown_job(job))

    def _list_jobs(self, request: Request) -> Answer:
        shown = []
        for job in reversed(self.jobs.values()):
            job.hidden -= 1
            if job.hidden < 0:
                shown.append(self._shown_job(job))
        if not self.options.pages:
            return answered({"object": "list", "data": shown})
        after = request.asked("after")
        ids = [job["id"] for job in shown]
        start = ids.index(after) + 1 if after in ids else 0
        page = shown[start : start + min(int(request.asked("limit", "20")), 3)]  # small, so that pages are needed
        return answered({"object": "list", "data": page, "has_more": start + len(page) < len(shown)})

    def _look_at_job(self, name: str) -> Answer:
        job = self.jobs.get(name)
        if job is None:
            return error(404, f"Could not find fine tune: {name}", "fine_tune_not_found", param="fine_tune_id")
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
        return answered(self._shown_job(job))

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

    def _set(self, request: Request) -> Answer:
        wanted = request.json()
        job = self.jobs[wanted.pop("id")]
        job.script = Script(through=[], end=None)
        for name, value in wanted.items():
            setattr(job, name, value)
        return answered({})

    def _jobs(self) -> list[dict[str, Any]]:
        return [
            {**self._shown_job(job), "body": job.body, "looks": job.looks,
             "sha256": self.uploads[job.body["training_file"]]["sha256"]}
            for job in self.jobs.values()
        ]  # fmt: skip


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
    """The right verdict on a solution of `tests.support.specs.dataset_file`; None where the messages show none."""
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
    run_server(Server, Options, __doc__)
