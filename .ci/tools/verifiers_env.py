"""Compare exported environments in verifiers 0.4 with runs of the same specs at the same server.

    python .ci/tools/verifiers_env.py [--python PYTHON_WITH_VERIFIERS_AND_HATCHLING] [--only NAME...]

If no Python with verifiers is given, the script creates an environment with it. The specs are those of the six
protocols of the paper, two of protocols that a user wrote, and one of listed answers. The script exports each spec and
installs it with pip. Then `vf-validate --only-gold` checks all tasks, and `vf-eval` plays 50 games. A loopback server
derives each answer from the messages of the request alone. The script checks:

- the requests have the same bytes as a run's requests, with the same counts
- every game has the id, outcome and rewards of the run's game
- the branches of each trace are the agent's longest chats at the server, each with its answer
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

from shared import ROOT, SoftAssertions, temporary_folder

from runner import run
from runner.cli.main import main as nip_run
from runner.spec.loader import load_spec
from tests.support.files import parquet_rows

PACKAGES = ("verifiers==0.4.*", "hatchling>=1.27")
GAME_COUNT = 50

DRIVER_SCRIPT = """
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
        options = [name, "--no-rich", "--run.dir", name]
        vf_validate([*options, "--only-gold", "--runtime.type", "subprocess", "-o", "validated"])
        server = ["--client.base-url", url, "--client.api-key-var", "HOME"]
        vf_eval([*options, "--no-push", "-m", "tiny", "-c", "8", *server, "-o", "evaluated"])
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            traceback.print_exc()
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)
"""
"""Runs both commands for each environment in a fork, so that verifiers is imported once: the import takes long."""

COUNCIL_PROTOCOL = """
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
JURY_PROTOCOL = """
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


def choose_reply(messages: list[dict[str, Any]]) -> str:
    """Derive an answer from a chat alone: an unusable text, a decision, or an argument."""
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
class ServerLog:
    """The requests and chats at a server."""

    bodies: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The body of each request by the first part of its path."""
    chats: defaultdict[str, list[Chat]] = field(default_factory=lambda: defaultdict(list))
    """Each chat with its answer, by the id of the trace."""


def to_chat(messages: list[dict[str, Any]]) -> Chat:
    return tuple((message["role"], message.get("content") or "") for message in messages)


@contextmanager
def run_chat_server(
    answer_to: Callable[[str, list[dict[str, Any]]], str] | None = None,
) -> Iterator[tuple[str, ServerLog]]:
    """Run a server on loopback. Yield its URL and log. `answer_to` gets the first part of the path and the messages."""
    server_log = ServerLog()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            parameters = {name: value for name, value in sorted(body.items()) if name != "messages"}
            sent = json.dumps([body["messages"], parameters], ensure_ascii=False)
            path_prefix = self.path.split("/")[1]
            server_log.bodies[path_prefix].append(sent.encode("utf-8", "surrogatepass"))
            text = answer_to(path_prefix, body["messages"]) if answer_to else choose_reply(body["messages"])
            message = {"role": "assistant", "content": text}
            server_log.chats[self.headers.get("X-Session-ID", "")].append(to_chat([*body["messages"], message]))
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
        yield f"http://127.0.0.1:{running.server_port}", server_log
    finally:
        running.shutdown()
        running.server_close()


def write_spec(here: Path, name: str, url: str) -> Path:
    """Write the spec of 50 games with this name, whose models are all at `url`."""
    settings = SPECS[name]
    model = {"provider": "openai", "model": "tiny", "base_url": url, "temperature": 0.5}
    spec = {
        "name": name, "seed": 3, "rollouts": {"per_datapoint": 2}, **settings,
        "models": dict.fromkeys(("offline", *(("juror", "foreman") if name == "jury" else ())), model),
        "dataset": {**settings.get("dataset", {}), "split": None, "group_by": None, "limit": GAME_COUNT // 2},
        "retry": {"invalid_response": {"attempts": 2, "then": "empty_message"}}, "fine_tune": None,
    }  # fmt: skip
    path = here / f"{name}-spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return path


def write_protocols(here: Path) -> None:
    (here / "council.yaml").write_text(COUNCIL_PROTOCOL)
    (here / "jury.yaml").write_text(JURY_PROTOCOL)
    (here / "council").mkdir()
    for agent in ("chair", "critic", "scout", "verifier", "verifier.last_round"):
        (here / "council" / f"{agent}.jinja").write_text(TEMPLATE)


def install_verifiers(here: Path) -> Path:
    """Create an environment with verifiers, and return its Python."""
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
    with temporary_folder() as here, run_chat_server() as (address, server_log):
        write_protocols(here)
        python = args.python or install_verifiers(here)
        games = {name: play_and_export(here, name, f"{address}/{name}/v1") for name in args.only}
        evaluate(here, python, {module_name(name): f"{address}/{module_name(name)}/v1" for name in args.only})
        for name in args.only:
            compare_games(check, here, name, server_log, games[name])
    return check.exit_code()


def module_name(name: str) -> str:
    return f"{name}_games"


Games = dict[str, tuple[str, dict[str, float]]]
"""The outcome of each game and the rewards of its agents, by its id."""


def play_and_export(here: Path, name: str, url: str) -> Games:
    """Play a spec with nip-run, and export it."""
    spec = write_spec(here, name, url)
    result = run(load_spec(spec), here / "results")
    rows = parquet_rows(result.path / "rollouts.parquet")
    code = nip_run(["export-env", str(spec), "-o", str(here / "packages" / module_name(name)), "-q"])
    assert code == 0, f"{name}: export-env ended with exit code {code}"
    return {row["rollout_id"]: (row["outcome"], json.loads(row["rewards"])) for row in rows}


def evaluate(here: Path, python: Path, addresses: Mapping[str, str]) -> None:
    """Install the exported packages with pip, then validate and evaluate each at its address."""
    packages = [here / "packages" / module for module in addresses]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-build-isolation", *packages], check=True)
    process = subprocess.run(
        [python, "-c", DRIVER_SCRIPT, json.dumps(addresses)], cwd=here, env={"HOME": str(here)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if process.returncode:
        print(process.stdout[-6_000:], process.stderr[-6_000:])


def compare_games(check: SoftAssertions, here: Path, name: str, server_log: ServerLog, games: Games) -> None:
    """Compare an evaluation's requests and traces with the run."""
    module = module_name(name)
    checks = [
        json.loads(line) for line in (here / "validated" / module / "results.jsonl").read_text("utf-8").splitlines()
    ]
    valid = sum(row["valid"] is True for row in checks)
    check(valid == len(checks) == GAME_COUNT, f"{name}: vf-validate finds {valid} of {GAME_COUNT} tasks valid")
    run_requests, evaluation_requests = Counter(server_log.bodies[name]), Counter(server_log.bodies[module])
    check(
        run_requests == evaluation_requests,
        f"{name}: vf-eval sent {evaluation_requests.total()} requests and nip-run {run_requests.total()}, "
        "each with the same bytes",
    )
    traces = read_traces(here / "evaluated" / module / "traces.jsonl")
    differing = [
        trace["id"] for trace in traces if find_branches(trace) != find_longest_chats(server_log.chats[trace["id"]])
    ]
    branches = sum(len(find_branches(trace)) for trace in traces)
    check(
        not differing,
        f"{name}: the {branches} branches of {len(traces)} traces are the longest chats; not in {differing[:3]}",
    )
    traced = collect_results(traces)
    differing_games = [
        rollout
        for rollout, (outcome, rewards) in games.items()
        if rollout not in traced
        or traced[rollout][0] != outcome
        or any(rewards[seat] != reward for seat, reward in traced[rollout][1].items())
    ]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(o for o, _ in games.values()).items())
    check(
        not differing_games and len(traced) == len(games) == GAME_COUNT,
        f"{name}: the {len(traced)} games have the outcomes ({outcomes}) and rewards of the run; "
        f"not {differing_games[:3]}",
    )


def read_traces(path: Path) -> list[dict[str, Any]]:
    """Read the traces of all games."""
    return [trace for line in path.read_text("utf-8").strip().split("\n") for trace in json.loads(line)["traces"]]


def collect_results(traces: list[dict[str, Any]]) -> Games:
    """Return the outcome of each game, and the rewards of the agents that a request was sent for."""
    games: Games = {}
    for trace in traces:
        facts = trace["info"]
        _, rewards = games.setdefault(facts["rollout_id"], (facts["outcome"], {}))
        rewards[facts["seat"]] = trace["rewards"]["game"]["score"]
    return games


def find_branches(trace: Mapping[str, Any]) -> set[Chat]:
    """Return the chats of a trace: the path to each message that no other message follows."""
    nodes = trace["nodes"]
    leaves = set(range(len(nodes))) - {node.get("parent") for node in nodes}
    branches = set()
    for leaf in leaves:
        path, node = [], leaf
        while node is not None:
            path.append(nodes[node]["message"])
            node = nodes[node].get("parent")
        branches.add(to_chat(path[::-1]))
    return branches


def find_longest_chats(chats: list[Chat]) -> set[Chat]:
    """Return the chats that are not the beginning of another chat."""
    return {
        chat
        for chat in chats
        if not any(len(other_chat) > len(chat) and other_chat[: len(chat)] == chat for other_chat in chats)
    }


if __name__ == "__main__":
    raise SystemExit(main())
