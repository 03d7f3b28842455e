"""The schemas in an editor: what the YAML language server completes, tells and underlines.

    python .ci/tools/editor.py     # needs node and npm; installs the server in a temporary folder

The server is spoken to over standard input and output, as an editor does it.
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

from shared import ROOT, SoftAssertions, folder

SERVER = "yaml-language-server@2.0.0"
TIMEOUT = 60.0
HERE = "|"
"""Where the cursor stands in a text."""


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
        """Take what the server says to its end, and answer what it asks: an editor without settings of its own."""
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
        """The answer to a request."""
        number = next(self.numbers)
        self.send(id=number, method=method, params=params)
        while True:
            answer = self.answers.get(timeout=TIMEOUT)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, text: str, name: str) -> tuple[str, list[dict[str, Any]]]:
        """Open a new file beside the schemas; its address and its diagnostics."""
        uri = (ROOT / "specs" / f"{next(self.numbers)}-{name}").as_uri()
        item = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": item})
        while True:
            of, found = self.diagnostics.get(timeout=TIMEOUT)
            if of == uri:
                return uri, found

    def at_cursor(self, method: str, text: str) -> Any:
        """What the server answers where the cursor stands in a text."""
        before, _, after = text.partition(HERE)
        uri, _ = self.open(before + after, "edited.yaml")
        lines = before.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        return self.ask(f"textDocument/{method}", textDocument={"uri": uri}, position=position)

    def completes(self, text: str) -> dict[str, str]:
        """What is offered at the cursor, with the text that each would insert."""
        found = self.at_cursor("completion", text)
        items = found["items"] if isinstance(found, dict) else found or []
        return {item["label"]: item.get("insertText", item["label"]) for item in items}

    def hover(self, text: str) -> str:
        found = self.at_cursor("hover", text)
        return str(found["contents"]["value"]) if found else ""

    def complaints(self, text: str, name: str = "edited.yaml") -> list[str]:
        """What is underlined, with its line."""
        return [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in self.open(text, name)[1]]


@contextmanager
def editing(work: Path) -> Iterator[Editor]:
    """A language server of a fresh installation, ready to be asked."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        sys.exit("FAIL  no node or npm here: install Debian's nodejs and npm")
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(work), SERVER], check=True)
    command = [str(work / "node_modules" / ".bin" / "yaml-language-server"), "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        editor = Editor(process)
        threading.Thread(target=editor.listen, daemon=True).start()
        markdown = {"contentFormat": ["markdown"]}
        can = {
            "textDocument": {
                "completion": {"completionItem": {"snippetSupport": True, "documentationFormat": ["markdown"]}},
                "hover": markdown,
                "publishDiagnostics": {},
            },
            "workspace": {"configuration": True},
        }
        editor.ask("initialize", processId=os.getpid(), rootUri=None, capabilities=can)
        editor.send(method="initialized", params={})
        try:
            yield editor
        finally:
            process.terminate()


def spec(text: str) -> str:
    return f"# yaml-language-server: $schema=experiment.schema.json\n{text}"


def protocol(text: str) -> str:
    return f"# yaml-language-server: $schema=protocol.schema.json\n{text}"


COMPLETED: tuple[tuple[str, str, dict[str, str]], ...] = (
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
    ),  # null: what is inherited is taken away
    ("the entries of a list", spec("fine_tune:\n  formats:\n    - |"), {"openai": "", "trl": "", "verl": ""}),
    (
        "the roles of a protocol's agents",
        protocol("agents:\n  mine:\n    role: |"),
        {"prover": "prover", "verifier": "verifier"},
    ),
)
"""What is completed, where, and what each insertion begins with."""

HOVER_TEXTS: tuple[tuple[str, str], ...] = (
    (spec("protocol:\n  max_mess|age_rounds: 3"), "Maximum number of rounds of a game."),
    (spec("protocol:\n  us|e: nip"), "A built-in protocol"),
    (spec("models:\n  mine:\n    temper|ature: 1"), "The sampling temperature."),
    (spec("ext|ends: base/offline.yaml"), "The base file or files"),
    (protocol("cycle:\n  - dr|aw: one"), "only one of them speaks, chosen at random in each game"),
)
"""What an editor shows for the key under the cursor."""

UNDERLINED: tuple[tuple[str, str], ...] = (
    (spec("dataset: {splitt: x}"), "2: Property splitt is not allowed"),
    (spec("seed: 0\n\nmodles: {}"), "4: Property modles is not allowed"),
    (spec("models: {mine: {provider: openai, temprature: 1}}"), "2: Property temprature is not allowed"),
    (spec("seed: zero"), "2: a whole number belongs here, or ${key}"),
    (spec("rollouts: {concurrency: '3'}"), "2: a whole number belongs here, or ${key}"),
    (spec("fine_tune: {only_correct: maybe}"), "2: true or false belongs here, or ${key}"),
    (spec("rollouts: many"), "2: a mapping (KEY: VALUE lines) belongs here, or ${key}"),
    (spec("rollouts: {per_datapoint: 0}"), "2: Value is below the minimum of 1"),
    (spec("agents: {prover: {model: 3}}"), '2: Incorrect type. Expected "string"'),
    (spec("protocol: {use: debat}"), "2: Value is not accepted. Valid values: "),
    (spec("kind: traning"), "2: Value is not accepted. Valid values: "),
    (protocol("agents: {mine: {role: judge}}"), "2: Value is not accepted. Valid values: "),
    (protocol("cycle: [{speek: {}}]"), "2: Property speek is not allowed"),
)
"""Mistakes, each with the one thing that is said of it."""

SOUND: tuple[str, ...] = (
    spec("extends: [base/offline.yaml, mine.yaml]\nprotocol: {use: ../protocols/council.yaml}"),
    spec("seed: ${rollouts.per_datapoint}\nname: ${benchmark}-2\nkind: ${mode}\nrollouts: ${other.rollouts}"),
    spec("models:\n  a: {provider: '${models.b.provider}', top_p: '${t}', base_url: '${server}/v1'}\n  b: ${models.a}"),
    spec("fine_tune: {formats: ['${f}'], agents: '${some}', only_correct: '${c}'}\nprotocol: {use: '${p}'}"),
    spec("cache: null\nfine_tune: null\nagents: {prover: null}\nmodels: {offline: null}"),
    spec("sweep: {agents.verifier.model: [small, strong], seed: [0, 1]}"),
    protocol("extends: debate\nparameters: {max_message_rounds: 4, sequential: true}"),
)
"""What must not be underlined."""


def main() -> int:
    claim = SoftAssertions()
    with folder() as work, editing(work) as editor:
        for what, text, wanted in COMPLETED:
            offered = editor.completes(text)
            holds = all(offered.get(label, "-").startswith(begins) for label, begins in wanted.items())
            claim(holds and ("null" in offered) == ("null" in wanted), f"completes {what} ({len(offered)} offers)")
        for text, wanted_text in HOVER_TEXTS:
            claim(wanted_text in editor.hover(text).replace("\\", ""), f"hovering tells {wanted_text!r}")
        for text, wanted_text in UNDERLINED:
            said = editor.complaints(text)
            claim(len(said) == 1 and said[0].startswith(wanted_text), f"underlines {text.splitlines()[-1]!r}: {said}")
        for text in SOUND:
            claim(not (said := editor.complaints(text)), f"no false alarm on {text.splitlines()[1:]!r}: {said}")
        for path in sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "specs" / "base").glob("*.yaml")]):
            said = editor.complaints(spec(path.read_text("utf-8")))
            claim(not said, f"no false alarm on {path.relative_to(ROOT)}: {said}")
        for path in sorted((ROOT / "runner" / "game" / "protocols").glob("*.yaml")):
            said = editor.complaints(protocol(path.read_text("utf-8")))
            claim(not said, f"no false alarm on {path.relative_to(ROOT)}: {said}")
    return claim.exit_code()


if __name__ == "__main__":
    sys.exit(main())
