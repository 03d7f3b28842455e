"""A run with questions for people in its own process, and the address of its page."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import read_stderr_until, start_nip_run, wait_until
from tests.support.specs import spec_file

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class QuestionProcess(NamedTuple):
    """A running command with a page for people."""

    process: subprocess.Popen[str]
    address: str

    def post(self, name: str, **data: Any) -> Any:
        """Send JSON as the page does, and return the answer; an error of the server is raised."""
        request = urllib.request.Request(
            self.address + name, json.dumps(data).encode(), {"Content-Type": "application/json"}
        )
        with _DIRECT.open(request, timeout=HANG_SECONDS) as response:
            return json.load(response)

    def take(self, person: str) -> Any:
        """Wait for a question for a person, and return it."""
        wait_until(lambda: self.post("take", person=person)["question"] is not None)
        return self.post("take", person=person)["question"]

    def answer(self, person: str, **values: str) -> Any:
        """Answer a person's next question, and return the question."""
        question = self.take(person)
        self.post("answer", person=person, question=question["id"], values=values)
        return question


@contextmanager
def run_with_questions(*arguments: str | Path, cwd: Path) -> Iterator[QuestionProcess]:
    """Run `nip-run` until it prints the address of its page; kill it at the end if it has not ended."""
    process = start_nip_run(*arguments, "--no-open", cwd=cwd)
    try:
        printed = read_stderr_until(process, "only you can read it)")
        match = re.search(r"file://\S+", printed)
        assert match, printed
        page = Path(unquote(urlsplit(match[0]).path)).read_text("utf-8")
        address = re.search(r'href="(http://127\.0\.0\.1:[^"]+)"', page)
        assert address, page
        yield QuestionProcess(process, address[1])
    finally:
        process.kill()
        process.communicate()


def human_judge_spec(folder: Path, base_url: str | None = None, **changes: Any) -> Path:
    """Write a spec of `nip` with a person as the verifier, who asks once and then decides."""
    options: dict[str, Any] = {
        "models": {"people": {"provider": "human"}},
        "agents": {"verifier": {"model": "people"}},
        "protocol": {"max_message_rounds": 3},
        "fine_tune": None,
    }
    return spec_file(folder, base_url, **{**options, **changes})
