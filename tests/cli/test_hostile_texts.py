"""A spec all of whose texts are hostile, and records that were edited to be: no byte of them drives a terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.documents.yaml_writer import dump
from tests.support.paths import ROOT
from tests.support.processes import command, environment, nip_run, nip_run_here
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

BAD = (
    "\x1b[38;5;213mC\x1b[0m \x1b]0;owned\x07 \x1b]52;c;cm0gLXJmIH4=\x1b\\ \x1bP q\x1b\\ \x9b2J \x07 0.10\r0.99 "
    "0.1\b\b\b9 [/b] [bold red]x[/] [link=http://evil.example]y[/link] \u202egnp\u202c \u2066z\u2069 "
    "\U000e0041\U000e007f \u200b\u2028\ufeff\xad\x7f\x85 \ue000 end"
)
NAME = BAD.replace("/", "").replace("\\", "")[:60] + BAD[-30:]
"""What a file can be called."""
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
FAULT = "bug in nip-run"
RICH = re.compile(r"\x1b\[(0|1|2|3|[0-9];[0-9]+|3[0-9]|[1-9];3[0-9]|38;2;[0-9;]+|[0-9]*[KA]|\?25[lh])?m?|\r")
"""What rich itself writes to a terminal: colours, and a bar that is drawn again."""


def hidden(text: str) -> list[str]:
    return [f"U+{ord(c):04X}" for c in text if c not in "\n\t" and unicodedata.category(c) in HIDDEN]


def check_harmless(done: subprocess.CompletedProcess[str], *codes: int) -> None:
    said = done.stdout + done.stderr
    assert FAULT not in said, said
    assert hidden(said) == []
    assert done.returncode in codes, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A spec all of whose texts are hostile, swept over hostile values, and its runs with a hostile server."""
    made = tmp_path_factory.mktemp("hostile")
    shutil.copytree(ROOT / "prompts/code_validation/nip", made / NAME)
    text = f"{BAD}\n\nDecision: accept"
    with run_chat_server(text=text, model=BAD) as server:
        path = spec_file(
            made, server.base_url, prompts=NAME, description=BAD, benchmark=BAD, cache=f"{NAME}.sqlite",
            dataset={"path": f"{NAME}.jsonl", "columns": {"id": BAD}, "filter": f"label < 2 /* {BAD} */"},
            models={"m": {"model": BAD, "base_model": BAD, "stop": [BAD], "extra_body": {BAD: [BAD, {BAD: BAD}]}}},
            sweep={"description": ["plain"], "models.m.base_model": ["[/b]", BAD]},
        )  # fmt: skip
        path.write_text(dump(json.loads(path.read_text())), "utf-8")  # JSON's pairs of escapes are none in YAML
        rows = [{BAD: f"{BAD}{n}", "label": n % 2, "question": BAD, "solution": BAD, f"x{BAD}": BAD} for n in range(2)]
        (made / f"{NAME}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = nip_run_here(path, "-v", cwd=made)
        check_harmless(done, 0)
        assert len(list((made / "results" / "runs").iterdir())) == 2  # every point of the sweep was played
        assert "[/b]" in done.stdout
        yield made


def a_run(folder: Path) -> str:
    return min(path.name for path in (folder / "results" / "runs").iterdir())


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check", "spec.yaml"),
    ("show", "RUN"),
    ("leaderboard", BAD),
    ("spec.yaml",),
    ("render", "spec.yaml", "verifier"),
    ("runs",),
    ("show", "RUN", f"{BAD}0"),
    ("leaderboard",),
    ("leaderboard", "--rebuild"),
    ("sql", "SELECT benchmark, spec, model, base_model FROM runs JOIN agents USING (run_id) LIMIT 1"),
    ("sql", "SELECT content, raw_message FROM messages JOIN completions USING (rollout_id) LIMIT 1"),
    ("sql", f"SELECT '{BAD}' AS \"{BAD}\", 'nan'::DOUBLE AS n, MAP {{[1]: '{BAD}'}} AS m, DATE '2026-01-01' AS d"),
    ("explain-misses", "RUN"),
    ("report", "RUN", "-o", "report.html"),
    ("notes", "RUN", f"{BAD}0", "--add", BAD.replace("\ud800", ""), "--tag", "odd"),
    ("notes", "RUN"),
    ("plot", "outcomes", "RUN", "-o", "f.svg"),
    ("export", "RUN", "--format", "openai"),
)


@pytest.mark.full
@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_lets_a_hostile_text_through(folder: Path, words: tuple[str, ...]) -> None:
    named = [a_run(folder) if word == "RUN" else word for word in words]
    check_harmless(nip_run_here(*named, cwd=folder), 0)
    done = nip_run_here(*named, "--json", cwd=folder)
    check_harmless(done, 0)
    assert done.stdout.isascii()
    json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("show", "RUN", f"{BAD}0"), ("spec.yaml", "--again"), ("runs",), ("leaderboard",)])
def test_on_a_terminal_there_is_nothing_but_colours_of_ours(folder: Path, words: tuple[str, ...]) -> None:
    code, seen = run_in_terminal(*(a_run(folder) if word == "RUN" else word for word in words), cwd=folder)
    assert code in (0, 1)
    assert "\x1b[38;5;213" not in seen
    assert "evil.example\x1b" not in seen
    assert hidden(RICH.sub("", seen)) == []


WRONG: tuple[tuple[str, ...], ...] = (
    (f"{BAD}.yaml",),
    ("spec.yaml", f"{BAD}={BAD}"),
    ("spec.yaml", f"+dataset.filter={json.dumps(BAD)}", f"~{BAD}"),
    ("spec.yaml", f"dataset.filter={json.dumps(f'nothing = {BAD}')}"),
    ("spec.yaml", f"dataset.path={json.dumps(BAD)}"),
    ("spec.yaml", f"prompts={json.dumps(BAD)}"),
    ("spec.yaml", f"protocol.use={json.dumps(BAD)}"),
    ("spec.yaml", f"agents.{BAD}.model=x"),
    ("spec.yaml", f"agents.prover.model={json.dumps(BAD)}"),
    ("spec.yaml", "--replay", BAD),
    ("spec.yaml", "--run-id", BAD),
    ("spec.yaml", "--set-model", BAD),
    ("spec.yaml", "--" + BAD.replace(" ", "")),  # with a space it would be no option
    ("spec.yaml", "-v", "-v", f"{BAD}={BAD}"),
    ("render", "spec.yaml", BAD),
    ("render", "spec.yaml", "verifier", "--datapoint", BAD),
    ("show", BAD),
    ("show", "RUN", BAD),
    ("runs", "--status", BAD),
    ("sql", f"SELECT {BAD}"),
    ("export", BAD, "--format", BAD),
    ("plot", BAD, "RUN", "-o", "f.svg"),
    ("plot", "forest", "RUN", "-o", "f.svg", "--metric", BAD),
    ("report", BAD, "-o", "report.html"),
    ("view", BAD, "--no-open"),
    ("notes", "RUN", "--remove", BAD),
    ("notes", "RUN", BAD, "--add", "seen"),
    ("explain-misses", "RUN", "--cache", BAD),
)


@pytest.mark.sample(6)
@pytest.mark.parametrize("words", WRONG)
def test_no_message_of_a_mistake_lets_a_hostile_word_through(folder: Path, words: tuple[str, ...]) -> None:
    named = [a_run(folder) if word == "RUN" else word for word in words]
    check_harmless(nip_run_here(*named, cwd=folder), 1, 2)
    done = nip_run_here(*named, "--json", cwd=folder)
    check_harmless(done, 1, 2)
    if done.stdout:
        assert json.loads(done.stdout)["ok"] is False


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [(b"\xff\xfe.yaml",), (b"spec.yaml", b"description=\xed\xa0\x80\xff"), (b"show", b"\x9b2J\xff")]
)
def test_words_that_are_no_text_are_mistakes(folder: Path, words: tuple[bytes, ...]) -> None:
    done = subprocess.run([*command(), *words], cwd=folder, env=environment(), capture_output=True, check=False)
    assert hidden(done.stdout.decode() + done.stderr.decode()) == []
    assert FAULT.encode() not in done.stderr
    assert done.returncode == 2


def edited(value: Any, kept: Callable[[str], bool]) -> Any:
    """The same data with every text, but those that are kept, hostile."""
    if isinstance(value, dict):
        return {name: edited(item, kept) if not kept(name) else item for name, item in value.items()}
    if isinstance(value, list):
        return [edited(item, kept) for item in value]
    return BAD if isinstance(value, str) else value


@pytest.fixture
def forged(folder: Path, tmp_path: Path) -> Path:
    """A results folder whose manifests and metrics somebody has edited."""
    shutil.copytree(folder / "results", tmp_path / "results")
    for run in (tmp_path / "results" / "runs").iterdir():
        manifest = json.loads((run / "manifest.json").read_bytes())
        (run / "SHA256SUMS").unlink()
        forged = edited(manifest, lambda name: name in ("status", "kind", "cache"))
        (run / "manifest.json").write_text(json.dumps({**forged, BAD: BAD}))
        metrics = json.loads((run / "metrics.json").read_bytes())
        (run / "metrics.json").write_text(json.dumps({**edited(metrics, lambda _: False), BAD: BAD}))
    return tmp_path


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "words", [("runs",), ("show", "RUN"), ("leaderboard", "--rebuild"), ("leaderboard",), ("show", "RUN", "x")]
)
def test_a_forged_manifest_reaches_no_terminal(forged: Path, words: tuple[str, ...]) -> None:
    named = [a_run(forged) if word == "RUN" else word for word in words]
    check_harmless(nip_run_here(*named, cwd=forged), 0, 1, 2)
    done = nip_run_here(*named, "--json", cwd=forged)
    check_harmless(done, 0, 1, 2)
    json.loads(done.stdout)


def test_a_manifests_fact_is_one_line(forged: Path) -> None:
    run = forged / "results" / "runs" / a_run(forged)
    manifest = json.loads((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_text(json.dumps({**manifest, "protocol": "nip\nstatus          done\tx"}))
    said = nip_run_here("show", run.name, cwd=forged).stdout
    assert "protocol        nip\\nstatus          done\\tx\n" in said


def test_a_damaged_manifest_with_hostile_bytes_is_only_named(forged: Path) -> None:
    run = forged / "results" / "runs" / a_run(forged)
    (run / "manifest.json").write_bytes(BAD.encode("utf-8", "surrogatepass") + b"\xff\x9b")
    for words in (("runs",), ("show", run.name), ("leaderboard", "--rebuild")):
        check_harmless(nip_run_here(*words, cwd=forged), 0, 1, 2)


@pytest.mark.full
def test_a_character_that_the_terminal_lacks_is_no_error(tmp_path: Path) -> None:
    spec_file(tmp_path)
    done = nip_run("check", "spec.yaml", "ü=1", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 2, done.stderr
    assert "\\xfc" in done.stderr


@pytest.mark.full
def test_a_sweep_over_markup_plays_every_point(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    done = nip_run_here("spec.yaml", 'sweep={benchmark: ["[/b]", "[bold]", "[link=x]"]}', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 3
    for value in ("[/b]", "[bold]", "[link=x]"):
        assert f" {value} " in done.stdout


def test_the_runs_themselves_hold_the_texts_as_they_were(folder: Path) -> None:
    run = folder / "results" / "runs" / a_run(folder)
    assert BAD in json.loads((run / "manifest.json").read_bytes())["benchmark"]
