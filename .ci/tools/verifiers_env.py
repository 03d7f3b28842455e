"""Exported environments in verifiers 0.4, beside runs of the same specs at the same server.

    python .ci/tools/verifiers_env.py [--python PYTHON_WITH_VERIFIERS_AND_HATCHLING] [--only NAME...]

Without a Python that has verifiers, an environment with it is made. The specs are those of the six protocols of the
paper, two of protocols that a user wrote, and one of listed answers. Each is exported and installed by pip. Then
`vf-validate --only-gold` checks all of its tasks, and `vf-eval` plays 50 games. A loopback server derives each answer
from the messages of the request alone. Claimed: the requests have the bytes of a run's requests, each as often; every
game has the id, outcome and rewards of the run's game; the branches of each trace are the longest chats that the
server saw from this agent, each with its answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import threading
import venv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shared import ROOT, SoftAssertions, folder

from runner.api import run
from runner.cli.main import main as nip_run
from runner.spec.loader import load_spec
from tests.support.files import parquet_rows

PACKAGES = ("verifiers==0.4.*", "hatchling>=1.27")
GAMES = 50

DRIVE = """
import json, os, sys, traceback
from pathlib import Path
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.cli.validate import main as vf_validate

for name, url in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")
        continue
    try:
        words = [name, "--no-rich", "--run.dir", name]
        vf_validate([*words, "--only-gold", "--runtime.type", "subprocess", "-o", "validated"])
        server = ["--client.base-url", url, "--client.api-key-var", "HOME"]
        vf_eval([*words, "--no-push", "-m", "tiny", "-c", "8", *server, "-o", "evaluated"])
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            traceback.print_exc()
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)
"""
"""Runs both commands for each environment, in a process that has imported verifiers, which takes long."""

COUNCIL = """
name: council
agents:
  chair: {role: prover, human_name: Chair}
  critic: {role: prover, human_name: Critic, stance: reject}
  scout: {role: prover, human_name: Scout, anonymous: true}
  verifier: {role: verifier, human_name: Verifier, last_round_message: true}
channels:
  hall: {members: [chair, verifier]}
  chamber: {members: [chair, critic, scout]}
cycle:
  - speak: {verifier: [hall]}
  - speak: {scout: [chamber], critic: [chamber]}
  - speak: {chair: [hall]}
parameters: {max_message_rounds: 6}
"""
JURY = """
name: jury
extends: panel_debate
agents:
  judge0: {scratchpad: "Because"}
panel: {rule: sequential}
parameters: {max_message_rounds: 6}
"""
TEMPLATE = "You are {{ agent_name }}. {{ question }} {{ solution }} Write {{ accept }} or {{ reject }}, or ask.\n"

PAPER = ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier")
SPECS: Mapping[str, dict[str, Any]] = {
    **{name: {"extends": f"{ROOT}/specs/{name}.yaml"} for name in PAPER},
    "council": {
        "dataset": {"path": f"{ROOT}/specs/data/code_validation.jsonl"},
        "protocol": {"use": "council.yaml"}, "prompts": "council",
        "agents": {"_default": {"model": "offline"}, "critic": {"freeze": True}, "verifier": {"freeze": True}},
    },
    "jury": {"extends": f"{ROOT}/specs/panel_debate.yaml", "protocol": {"use": "jury.yaml"}, "stances": "both",
             "rollouts": {"per_datapoint": 1}},
    "answer_debate": {"extends": f"{ROOT}/specs/answer_debate.yaml", "verdict": {"form": "answer"}, "seats": {
        "swap": ["prover0", "prover1"]}, "rollouts": {"per_datapoint": 1}},
}  # fmt: skip


def reply(messages: list[dict[str, Any]]) -> str:
    """The answer to a chat: it depends on nothing else, may be unusable, and sometimes decides."""
    text = json.dumps(messages, ensure_ascii=False)
    kind, number = hashlib.sha256(text.encode()).digest()[:2]
    if kind % 8 == 0:
        return ""
    if kind % 8 <= 3:
        verdict = "ABCD"[number % 4] if "Decision: <" in text else ("accept", "reject")[number % 2]
        return f"Decision: {verdict}\nConfidence: 0.{number % 10}"
    headers = sorted(set(re.findall(r"Question for Expert_\d:", text)))
    return "\n".join(f"{header} Why {number}?" for header in headers) or f'Because of {number} “ünï”\u2028 \\ "x".'


Chat = tuple[tuple[str, str], ...]
"""The role and text of each message of a chat."""


@dataclass
class Seen:
    """What a server saw."""

    bodies: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The body of each request by the first part of its path."""
    chats: defaultdict[str, list[Chat]] = field(default_factory=lambda: defaultdict(list))
    """Each chat with its answer, by the id of the trace."""


def chat_of(messages: list[dict[str, Any]]) -> Chat:
    return tuple((message["role"], message.get("content") or "") for message in messages)


@contextmanager
def server(answer_to: Callable[[str, list[dict[str, Any]]], str] | None = None) -> Iterator[tuple[str, Seen]]:
    """A server on loopback; its address, and what it sees. It may answer by the first part of the path too."""
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            parameters = {name: value for name, value in sorted(body.items()) if name != "messages"}
            sent = json.dumps([body["messages"], parameters], ensure_ascii=False)
            place = self.path.split("/")[1]
            seen.bodies[place].append(sent.encode("utf-8", "surrogatepass"))
            text = answer_to(place, body["messages"]) if answer_to else reply(body["messages"])
            message = {"role": "assistant", "content": text}
            seen.chats[self.headers.get("X-Session-ID", "")].append(chat_of([*body["messages"], message]))
            answer = {
                "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }  # fmt: skip
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Waiting(ThreadingHTTPServer):
        request_queue_size = 512  # all games of an evaluation connect at once

    running = Waiting(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", seen
    finally:
        running.shutdown()
        running.server_close()


def write_spec(here: Path, name: str, url: str) -> Path:
    """Write the spec of 50 games with this name, whose models are all at `url`."""
    own = SPECS[name]
    model = {"provider": "openai", "model": "tiny", "base_url": url, "temperature": 0.5}
    spec = {
        "name": name, "seed": 3, "rollouts": {"per_datapoint": 2}, **own,
        "models": dict.fromkeys(("offline", *(("juror", "foreman") if name == "jury" else ())), model),
        "dataset": {**own.get("dataset", {}), "split": None, "group_by": None, "limit": GAMES // 2},
        "retry": {"invalid_response": {"attempts": 2, "then": "empty_message"}}, "fine_tune": None,
    }  # fmt: skip
    path = here / f"{name}-spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return path


def write_protocols(here: Path) -> None:
    (here / "council.yaml").write_text(COUNCIL)
    (here / "jury.yaml").write_text(JURY)
    (here / "council").mkdir()
    for agent in ("chair", "critic", "scout", "verifier", "verifier.last_round"):
        (here / "council" / f"{agent}.jinja").write_text(TEMPLATE)


def installed(here: Path) -> Path:
    """An environment that has verifiers."""
    venv.create(here / "venv", with_pip=True)
    python = here / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has the tools")
    parser.add_argument("--only", nargs="+", default=list(SPECS), choices=list(SPECS), metavar="NAME")
    args = parser.parse_args()
    check = SoftAssertions()
    with folder() as here, server() as (address, seen):
        write_protocols(here)
        python = args.python or installed(here)
        games = {name: play(here, name, f"{address}/{name}/v1") for name in args.only}
        evaluate(here, python, {module_of(name): f"{address}/{module_of(name)}/v1" for name in args.only})
        for name in args.only:
            compare(check, here, name, seen, games[name])
    return check.exit_code()


def module_of(name: str) -> str:
    return f"{name}_games"


Games = dict[str, tuple[str, dict[str, float]]]
"""The outcome of each game, and the rewards of its seats, by its id."""


def play(here: Path, name: str, url: str) -> Games:
    """Play a spec with nip-run, and export it."""
    spec = write_spec(here, name, url)
    result = run(load_spec(spec), here / "results")
    rows = parquet_rows(result.path / "rollouts.parquet")
    code = nip_run(["export-env", str(spec), "-o", str(here / "packages" / module_of(name)), "-q"])
    assert code == 0, f"{name}: export-env ended with exit code {code}"
    return {row["rollout_id"]: (row["outcome"], json.loads(row["rewards"])) for row in rows}


def evaluate(here: Path, python: Path, addresses: Mapping[str, str]) -> None:
    """Install the exported packages with pip, then validate and evaluate each at its address."""
    packages = [here / "packages" / module for module in addresses]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-build-isolation", *packages], check=True)
    done = subprocess.run(
        [python, "-c", DRIVE, json.dumps(addresses)], cwd=here, env={"HOME": str(here)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout[-6_000:], done.stderr[-6_000:])


def compare(check: SoftAssertions, here: Path, name: str, seen: Seen, games: Games) -> None:
    """Compare what the server saw of an evaluation, and what its traces say, with the run."""
    module = module_of(name)
    checks = [
        json.loads(line) for line in (here / "validated" / module / "results.jsonl").read_text("utf-8").splitlines()
    ]
    valid = sum(row["valid"] is True for row in checks)
    check(valid == len(checks) == GAMES, f"{name}: vf-validate finds {valid} of {GAMES} tasks valid")
    ours, theirs = Counter(seen.bodies[name]), Counter(seen.bodies[module])
    check(
        ours == theirs,
        f"{name}: vf-eval sent {theirs.total()} requests and nip-run {ours.total()}, each with the same bytes",
    )
    traces = read_traces(here / "evaluated" / module / "traces.jsonl")
    differing = [trace["id"] for trace in traces if branches_of(trace) != longest_chats(seen.chats[trace["id"]])]
    branches = sum(len(branches_of(trace)) for trace in traces)
    check(
        not differing,
        f"{name}: the {branches} branches of {len(traces)} traces are the longest chats; not in {differing[:3]}",
    )
    traced = results_of(traces)
    wrong = [
        rollout
        for rollout, (outcome, rewards) in games.items()
        if rollout not in traced
        or traced[rollout][0] != outcome
        or any(rewards[seat] != reward for seat, reward in traced[rollout][1].items())
    ]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(o for o, _ in games.values()).items())
    check(
        not wrong and len(traced) == len(games) == GAMES,
        f"{name}: the {len(traced)} games have the outcomes ({outcomes}) and rewards of the run; not {wrong[:3]}",
    )


def read_traces(path: Path) -> list[dict[str, Any]]:
    """The traces of all games."""
    return [trace for line in path.read_text("utf-8").strip().split("\n") for trace in json.loads(line)["traces"]]


def results_of(traces: list[dict[str, Any]]) -> Games:
    """The outcome of each game, and the reward of each seat that was asked."""
    games: Games = {}
    for trace in traces:
        facts = trace["info"]
        _, rewards = games.setdefault(facts["rollout_id"], (facts["outcome"], {}))
        rewards[facts["seat"]] = trace["rewards"]["game"]["score"]
    return games


def branches_of(trace: Mapping[str, Any]) -> set[Chat]:
    """The chats of a trace: for each message that no other message follows, the path to it."""
    nodes = trace["nodes"]
    leaves = set(range(len(nodes))) - {node.get("parent") for node in nodes}
    branches = set()
    for leaf in leaves:
        path, node = [], leaf
        while node is not None:
            path.append(nodes[node]["message"])
            node = nodes[node].get("parent")
        branches.add(chat_of(path[::-1]))
    return branches


def longest_chats(chats: list[Chat]) -> set[Chat]:
    """The chats that are not the beginning of another chat."""
    return {chat for chat in chats if not any(len(other) > len(chat) and other[: len(chat)] == chat for other in chats)}


if __name__ == "__main__":
    raise SystemExit(main())
