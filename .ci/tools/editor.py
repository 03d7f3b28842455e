"""Check the schemas in an editor: completion, hover texts and diagnostics of the YAML language server.

    python .ci/tools/editor.py     # needs node and npm; installs the server in a temporary folder

The script talks to the server over standard input and output, as an editor does.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared import ROOT, SoftAssertions, temporary_folder

SERVER = "yaml-language-server@2.0.0"
TIMEOUT = 60.0
CURSOR = "|"
"""Marks the position of the cursor in a text."""


@dataclass
class Editor:
    """The client's half of the protocol: requests with their answers, and the newest diagnostics of each file."""

    process: subprocess.Popen[bytes]
    answers: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    diagnostics: queue.Queue[tuple[str, list[dict[str, Any]]]] = field(default_factory=queue.Queue)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def listen(self) -> None:
        """Read messages until the server exits, and answer its requests like an editor without settings."""
        assert self.process.stdout is not None
        while True:
            size = 0
            while (line := self.process.stdout.readline()).strip():
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            if not size:
                return
            message = json.loads(self.process.stdout.read(size))
            if "method" not in message:
                self.answers.put(message)
            elif message["method"] == "textDocument/publishDiagnostics":
                self.diagnostics.put((message["params"]["uri"], message["params"]["diagnostics"]))
            elif "id" in message:
                is_settings = message["method"] == "workspace/configuration"
                self.send(id=message["id"], result=[{} for _ in message["params"]["items"]] if is_settings else None)

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its answer."""
        number = next(self.numbers)
        self.send(id=number, method=method, params=params)
        while True:
            answer = self.answers.get(timeout=TIMEOUT)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, text: str, name: str) -> tuple[str, list[dict[str, Any]]]:
        """Open a new file next to the schemas. Return its URI and its diagnostics."""
        uri = (ROOT / "specs" / f"{next(self.numbers)}-{name}").as_uri()
        item = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": item})
        while True:
            address, diagnostics = self.diagnostics.get(timeout=TIMEOUT)
            if address == uri:
                return uri, diagnostics

    def ask_at_cursor(self, method: str, text: str) -> Any:
        """Open a text and send a request for the cursor's position in it."""
        before, _, after = text.partition(CURSOR)
        uri, _ = self.open(before + after, "edited.yaml")
        lines = before.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        return self.ask(f"textDocument/{method}", textDocument={"uri": uri}, position=position)

    def complete(self, text: str) -> dict[str, str]:
        """Return the completions at the cursor: each label with the text to insert."""
        answer = self.ask_at_cursor("completion", text)
        items = answer["items"] if isinstance(answer, dict) else answer or []
        return {item["label"]: item.get("insertText", item["label"]) for item in items}

    def hover(self, text: str) -> str:
        answer = self.ask_at_cursor("hover", text)
        return str(answer["contents"]["value"]) if answer else ""

    def find_diagnostics(self, text: str, name: str = "edited.yaml") -> list[str]:
        """Return the diagnostics of a text as `LINE: MESSAGE`."""
        return [
            f"{diagnostic['range']['start']['line'] + 1}: {diagnostic['message']}"
            for diagnostic in self.open(text, name)[1]
        ]


@contextmanager
def start_editor(work: Path) -> Iterator[Editor]:
    """Install and start a language server, and stop it at the end."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        sys.exit("FAIL  no node or npm here: install Debian's nodejs and npm")
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(work), SERVER], check=True)
    command = [str(work / "node_modules" / ".bin" / "yaml-language-server"), "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        editor = Editor(process)
        threading.Thread(target=editor.listen, daemon=True).start()
        markdown = {"contentFormat": ["markdown"]}
        capabilities = {
            "textDocument": {
                "completion": {"completionItem": {"snippetSupport": True, "documentationFormat": ["markdown"]}},
                "hover": markdown,
                "publishDiagnostics": {},
            },
            "workspace": {"configuration": True},
        }
        editor.ask("initialize", processId=os.getpid(), rootUri=None, capabilities=capabilities)
        editor.send(method="initialized", params={})
        try:
            yield editor
        finally:
            process.terminate()


def spec(text: str) -> str:
    return f"# yaml-language-server: $schema=experiment.schema.json\n{text}"


def protocol(text: str) -> str:
    return f"# yaml-language-server: $schema=protocol.schema.json\n{text}"


COMPLETIONS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "the keys of a spec, those behind `benchmark` too",
        spec("seed: 0\n|"),
        {"name": "name: ${1:nip-code-validation}", "models": "models: ", "rollouts": "rollouts:", "sweep": "sweep:"},
    ),
    (
        "every built-in protocol",
        spec("protocol:\n  use: |"),
        dict.fromkeys(["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"], ""),
    ),
    ("the parameters of a protocol", spec("protocol:\n  use: nip\n  |"), {"max_message_rounds": "", "force_guess": ""}),
    (
        "the keys of a model group, with an example",
        spec("models:\n  mine:\n    |"),
        {"provider": "provider: ", "temperature": "temperature: ${1:1}", "price": "price: ", "run": "run: "},
    ),
    (
        "the providers",
        spec("models:\n  mine:\n    provider: |"),
        {"openai": "openai", "dummy": "", "replay": "", "null": ""},
    ),
    (
        "the backends of a trainer",
        spec("training:\n  trainers:\n    mine:\n      backend: |"),
        {"openai": "openai", "command": "command", "files": "files", "dummy": "dummy"},
    ),
    (
        "true and false",
        spec("fine_tune:\n  only_correct: |"),
        {"true": "true", "false": "false", "null": ""},
    ),  # null removes an inherited value
    ("the entries of a list", spec("fine_tune:\n  formats:\n    - |"), {"openai": "", "trl": "", "verl": ""}),
    (
        "the roles of a protocol's agents",
        protocol("agents:\n  mine:\n    role: |"),
        {"prover": "prover", "verifier": "verifier"},
    ),
)
"""The subject of each completion, the text with the cursor, and the beginning of each expected insertion."""

HOVER_TEXTS: tuple[tuple[str, str], ...] = (
    (spec("protocol:\n  max_mess|age_rounds: 3"), "Maximum number of rounds of a game."),
    (spec("protocol:\n  us|e: nip"), "A built-in protocol"),
    (spec("models:\n  mine:\n    temper|ature: 1"), "The sampling temperature."),
    (spec("ext|ends: base/offline.yaml"), "The base file or files"),
    (protocol("cycle:\n  - dr|aw: one"), "only one of them speaks, chosen at random in each game"),
)
"""Texts with the cursor on a key, and a part of the hover text."""

MISTAKES: tuple[tuple[str, str], ...] = (
    (spec("dataset: {splitt: x}"), "2: Property splitt is not allowed"),
    (spec("seed: 0\n\nmodles: {}"), "4: Property modles is not allowed"),
    (spec("models: {mine: {provider: openai, temprature: 1}}"), "2: Property temprature is not allowed"),
    (spec("seed: zero"), "2: expected a whole number, or ${key}"),
    (spec("rollouts: {concurrency: '3'}"), "2: expected a whole number, or ${key}"),
    (spec("fine_tune: {only_correct: maybe}"), "2: expected true or false, or ${key}"),
    (spec("rollouts: many"), "2: expected a mapping (KEY: VALUE lines), or ${key}"),
    (spec("rollouts: {per_datapoint: 0}"), "2: Value is below the minimum of 1"),
    (spec("agents: {prover: {model: 3}}"), '2: Incorrect type. Expected "string"'),
    (spec("protocol: {use: debat}"), "2: Value is not accepted. Valid values: "),
    (spec("kind: traning"), "2: Value is not accepted. Valid values: "),
    (protocol("agents: {mine: {role: judge}}"), "2: Value is not accepted. Valid values: "),
    (protocol("cycle: [{speek: {}}]"), "2: Property speek is not allowed"),
)
"""Texts with one mistake, each with its diagnostic."""

VALID_TEXTS: tuple[str, ...] = (
    spec("extends: [base/offline.yaml, mine.yaml]\nprotocol: {use: ../protocols/council.yaml}"),
    spec("seed: ${rollouts.per_datapoint}\nname: ${benchmark}-2\nkind: ${mode}\nrollouts: ${other.rollouts}"),
    spec("models:\n  a: {provider: '${models.b.provider}', top_p: '${t}', base_url: '${server}/v1'}\n  b: ${models.a}"),
    spec("fine_tune: {formats: ['${f}'], agents: '${some}', only_correct: '${c}'}\nprotocol: {use: '${p}'}"),
    spec("cache: null\nfine_tune: null\nagents: {prover: null}\nmodels: {offline: null}"),
    spec("sweep: {agents.verifier.model: [small, strong], seed: [0, 1]}"),
    protocol("extends: debate\nparameters: {max_message_rounds: 4, sequential: true}"),
)
"""Texts without diagnostics."""


def main() -> int:
    check = SoftAssertions()
    with temporary_folder() as work, start_editor(work) as editor:
        for subject, text, expected in COMPLETIONS:
            offered = editor.complete(text)
            holds = all(offered.get(label, "-").startswith(start) for label, start in expected.items())
            check(holds and ("null" in offered) == ("null" in expected), f"completes {subject} ({len(offered)} offers)")
        for text, expected_text in HOVER_TEXTS:
            check(expected_text in editor.hover(text).replace("\\", ""), f"hovering tells {expected_text!r}")
        for text, expected_text in MISTAKES:
            diagnostics = editor.find_diagnostics(text)
            check(
                len(diagnostics) == 1 and diagnostics[0].startswith(expected_text),
                f"underlines {text.splitlines()[-1]!r}: {diagnostics}",
            )
        for text in VALID_TEXTS:
            check(
                not (diagnostics := editor.find_diagnostics(text)),
                f"no false alarm on {text.splitlines()[1:]!r}: {diagnostics}",
            )
        for path in sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "specs" / "base").glob("*.yaml")]):
            diagnostics = editor.find_diagnostics(spec(path.read_text("utf-8")))
            check(not diagnostics, f"no false alarm on {path.relative_to(ROOT)}: {diagnostics}")
        for path in sorted((ROOT / "runner" / "game" / "protocols").glob("*.yaml")):
            diagnostics = editor.find_diagnostics(protocol(path.read_text("utf-8")))
            check(not diagnostics, f"no false alarm on {path.relative_to(ROOT)}: {diagnostics}")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
