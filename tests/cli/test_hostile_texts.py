"""Hostile text in specs and edited records: none of its control characters reaches a terminal."""

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
FILE_NAME = BAD.replace("/", "").replace("\\", "")[:60] + BAD[-30:]
"""A hostile file name."""
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
FAULT = "bug in nip-run"
RICH = re.compile(r"\x1b\[(0|1|2|3|[0-9];[0-9]+|3[0-9]|[1-9];3[0-9]|38;2;[0-9;]+|[0-9]*[KA]|\?25[lh])?m?|\r")
"""Control sequences that rich itself writes: colors and redrawn progress bars."""


def find_hidden_characters(text: str) -> list[str]:
    return [f"U+{ord(c):04X}" for c in text if c not in "\n\t" and unicodedata.category(c) in HIDDEN_CATEGORIES]


def check_harmless(process: subprocess.CompletedProcess[str], *codes: int) -> None:
    output = process.stdout + process.stderr
    assert FAULT not in output, output
    assert find_hidden_characters(output) == []
    assert process.returncode in codes, output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a sweep whose spec, sweep values, data and server answers are hostile text."""
    root = tmp_path_factory.mktemp("hostile")
    shutil.copytree(ROOT / "prompts/code_validation/nip", root / FILE_NAME)
    text = f"{BAD}\n\nDecision: accept"
    with run_chat_server(text=text, model=BAD) as server:
        path = spec_file(
            root, server.base_url, prompts=FILE_NAME, description=BAD, benchmark=BAD, cache=f"{FILE_NAME}.sqlite",
            dataset={"path": f"{FILE_NAME}.jsonl", "columns": {"id": BAD}, "filter": f"label < 2 /* {BAD} */"},
            models={"m": {"model": BAD, "base_model": BAD, "stop": [BAD], "extra_body": {BAD: [BAD, {BAD: BAD}]}}},
            sweep={"description": ["plain"], "models.m.base_model": ["[/b]", BAD]},
        )  # fmt: skip
        path.write_text(dump(json.loads(path.read_text())), "utf-8")  # YAML does not read JSON's surrogate pairs
        rows = [{BAD: f"{BAD}{n}", "label": n % 2, "question": BAD, "solution": BAD, f"x{BAD}": BAD} for n in range(2)]
        (root / f"{FILE_NAME}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        process = nip_run_here(path, "-v", cwd=root)
        check_harmless(process, 0)
        assert len(list((root / "results" / "runs").iterdir())) == 2  # one run for each point of the sweep
        assert "[/b]" in process.stdout
        yield root


def first_run_id(folder: Path) -> str:
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
@pytest.mark.parametrize("template", COMMANDS)
def test_no_command_prints_hostile_text_unescaped(folder: Path, template: tuple[str, ...]) -> None:
    arguments = [first_run_id(folder) if argument == "RUN" else argument for argument in template]
    check_harmless(nip_run_here(*arguments, cwd=folder), 0)
    process = nip_run_here(*arguments, "--json", cwd=folder)
    check_harmless(process, 0)
    assert process.stdout.isascii()
    json.loads(process.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "arguments", [("show", "RUN", f"{BAD}0"), ("spec.yaml", "--again"), ("runs",), ("leaderboard",)]
)
def test_terminal_output_contains_only_control_sequences_of_rich(folder: Path, arguments: tuple[str, ...]) -> None:
    code, output = run_in_terminal(
        *(first_run_id(folder) if argument == "RUN" else argument for argument in arguments), cwd=folder
    )
    assert code in (0, 1)
    assert "\x1b[38;5;213" not in output
    assert "evil.example\x1b" not in output
    assert find_hidden_characters(RICH.sub("", output)) == []


INVALID_COMMANDS: tuple[tuple[str, ...], ...] = (
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
    ("spec.yaml", "--" + BAD.replace(" ", "")),  # with a space it would not be an option
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
@pytest.mark.parametrize("template", INVALID_COMMANDS)
def test_no_error_message_prints_a_hostile_argument_unescaped(folder: Path, template: tuple[str, ...]) -> None:
    arguments = [first_run_id(folder) if argument == "RUN" else argument for argument in template]
    check_harmless(nip_run_here(*arguments, cwd=folder), 1, 2)
    process = nip_run_here(*arguments, "--json", cwd=folder)
    check_harmless(process, 1, 2)
    if process.stdout:
        assert json.loads(process.stdout)["ok"] is False


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [(b"\xff\xfe.yaml",), (b"spec.yaml", b"description=\xed\xa0\x80\xff"), (b"show", b"\x9b2J\xff")]
)
def test_arguments_that_are_not_utf8_are_usage_errors(folder: Path, arguments: tuple[bytes, ...]) -> None:
    process = subprocess.run([*command(), *arguments], cwd=folder, env=environment(), capture_output=True, check=False)
    assert find_hidden_characters(process.stdout.decode() + process.stderr.decode()) == []
    assert FAULT.encode() not in process.stderr
    assert process.returncode == 2


def make_hostile(value: Any, is_unchanged: Callable[[str], bool]) -> Any:
    """Return the data with every text hostile, except under keys that `is_unchanged` accepts."""
    if isinstance(value, dict):
        return {
            name: make_hostile(item, is_unchanged) if not is_unchanged(name) else item for name, item in value.items()
        }
    if isinstance(value, list):
        return [make_hostile(item, is_unchanged) for item in value]
    return BAD if isinstance(value, str) else value


@pytest.fixture
def forged_results(folder: Path, tmp_path: Path) -> Path:
    """Return a results folder whose manifests and metrics were edited to contain hostile text."""
    shutil.copytree(folder / "results", tmp_path / "results")
    for run in (tmp_path / "results" / "runs").iterdir():
        manifest = json.loads((run / "manifest.json").read_bytes())
        (run / "SHA256SUMS").unlink()
        forged_results = make_hostile(manifest, lambda name: name in ("status", "kind", "cache"))
        (run / "manifest.json").write_text(json.dumps({**forged_results, BAD: BAD}))
        metrics = json.loads((run / "metrics.json").read_bytes())
        (run / "metrics.json").write_text(json.dumps({**make_hostile(metrics, lambda _: False), BAD: BAD}))
    return tmp_path


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "template", [("runs",), ("show", "RUN"), ("leaderboard", "--rebuild"), ("leaderboard",), ("show", "RUN", "x")]
)
def test_hostile_text_of_a_forged_manifest_reaches_no_terminal(forged_results: Path, template: tuple[str, ...]) -> None:
    arguments = [first_run_id(forged_results) if argument == "RUN" else argument for argument in template]
    check_harmless(nip_run_here(*arguments, cwd=forged_results), 0, 1, 2)
    process = nip_run_here(*arguments, "--json", cwd=forged_results)
    check_harmless(process, 0, 1, 2)
    json.loads(process.stdout)


def test_line_breaks_in_a_manifest_value_are_escaped(forged_results: Path) -> None:
    run = forged_results / "results" / "runs" / first_run_id(forged_results)
    manifest = json.loads((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_text(json.dumps({**manifest, "protocol": "nip\nstatus          done\tx"}))
    output = nip_run_here("show", run.name, cwd=forged_results).stdout
    assert "protocol        nip\\nstatus          done\\tx\n" in output


def test_damaged_manifest_with_hostile_bytes_is_reported_safely(forged_results: Path) -> None:
    run = forged_results / "results" / "runs" / first_run_id(forged_results)
    (run / "manifest.json").write_bytes(BAD.encode("utf-8", "surrogatepass") + b"\xff\x9b")
    for arguments in (("runs",), ("show", run.name), ("leaderboard", "--rebuild")):
        check_harmless(nip_run_here(*arguments, cwd=forged_results), 0, 1, 2)


@pytest.mark.full
def test_character_outside_the_terminal_encoding_is_escaped(tmp_path: Path) -> None:
    spec_file(tmp_path)
    process = nip_run("check", "spec.yaml", "ü=1", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert process.returncode == 2, process.stderr
    assert "\\xfc" in process.stderr


@pytest.mark.full
def test_a_sweep_over_markup_plays_every_point(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    process = nip_run_here("spec.yaml", 'sweep={benchmark: ["[/b]", "[bold]", "[link=x]"]}', cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 3
    for value in ("[/b]", "[bold]", "[link=x]"):
        assert f" {value} " in process.stdout


def test_recorded_runs_contain_the_hostile_texts_unchanged(folder: Path) -> None:
    run = folder / "results" / "runs" / first_run_id(folder)
    assert BAD in json.loads((run / "manifest.json").read_bytes())["benchmark"]
