"""A loopback server of a judge with planted noise, which depends on the request and on how often it was sent before.

A prompt contains `Claim 12.` and `Write ACCEPT or REJECT.`, or the texts in the other order. Even claims are right. The
judge gives the other verdict with the probability `noise`. If the text for reject comes first, it rejects with the
probability `first_option`.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.hang_guard import HANG_SECONDS
from tests.support.threaded_server import serve_in_thread

PROMPT = "Claim {{ claim }}.\nWrite {{ %s }} or {{ %s }}.\n"
FOLDERS = {"plain": ("accept", "reject"), "reject_first": ("reject", "accept")}
NEGATIVE = re.compile(r"reject|no$")


@dataclass
class NoisyJudge:
    base_url: str = ""
    noise: float = 0.1
    first_option: float = 0.0
    leniency: float = 0.0
    """The probability that the judge accepts regardless of the claim, as after a change of the model."""
    failing: int = 0
    """The number of claims, from the first, about which all calls fail."""
    fingerprint: str = "fp_old"
    requests: Counter[str] = field(default_factory=Counter)
    """The number of requests by their body."""

    def verdict(self, prompt: str, number: int) -> str:
        """Return the verdict for the request that is sent for the given time."""
        claim = re.findall(r"Claim (\d+)\.", prompt)[0]
        options = re.findall(r"^Write (.*) or (.*)\.$", prompt, re.MULTILINE)[0]
        rng = random.Random(f"{prompt}/{number}/{self.fingerprint}")
        accepts = (int(claim) % 2 == 0) != (rng.random() < self.noise)
        if NEGATIVE.search(options[0]) and rng.random() < self.first_option:
            accepts = False
        accepts = accepts or rng.random() < self.leniency
        accept, reject = sorted(options, key=lambda option: NEGATIVE.search(option) is not None)
        return f"Reason {rng.randrange(3)}.\n{accept if accepts else reject}"


@contextmanager
def run_noisy_judge(**settings: Any) -> Iterator[NoisyJudge]:
    """Serve chat completions on loopback until the context ends."""
    judge, lock = NoisyJudge(**settings), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            body: Mapping[str, Any] = json.loads(content)
            with lock:
                judge.requests[content.decode()] += 1
                number = judge.requests[content.decode()]
            prompt = "\n".join(str(message["content"]) for message in body["messages"])
            message = {"role": "assistant", "content": judge.verdict(prompt, number)}
            answer = json.dumps({
                "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
                "system_fingerprint": judge.fingerprint,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }).encode()  # fmt: skip
            (claim,) = re.findall(r"Claim (\d+)\.", prompt)[:1]
            self.send_response(200 if int(claim) >= judge.failing else 500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    judge.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    with serve_in_thread(server):
        yield judge


def noisy_spec(folder: Path, base_url: str, claims: int = 30, repeats: int = 3, **changes: Any) -> Path:
    """Write a spec with three points: the reference, the other order of options, and other label words."""
    for name, options in FOLDERS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "verifier.jinja").write_text(PROMPT % options)
    rows = ({"id": f"c{number}", "label": 1 - number % 2, "claim": number} for number in range(claims))
    (folder / "claims.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "noisy", "dataset": {"path": "claims.jsonl"}, "protocol": {"use": "solo_verifier"}, "prompts": "plain",
        "models": {"judge": {"model": "judge", "base_url": base_url, "timeout": 2 * HANG_SECONDS}},
        "agents": {"verifier": {"model": "judge"}}, "rollouts": {"per_datapoint": repeats, "concurrency": 8},
        "sweep": [
            {"prompts": "plain"}, {"prompts": "reject_first"},
            {"decision_format.accept": "Decision: yes", "decision_format.reject": "Decision: no"},
        ],
        **changes,
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec))
    return path
