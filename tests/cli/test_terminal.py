"""Terminal safety: text of models and datasets cannot control the terminal."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import command, environment, nip_run_here
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

ESC = "\x1b"
HOSTILE = f"{ESC}]0;owned{ESC}\\{ESC}[2J{ESC}[31mred\x07\x9b2J\r\x08 \u202egnp\u202c\u200b"


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play a run whose datapoints and answers contain escape sequences."""
    root = tmp_path_factory.mktemp("hostile")
    with run_chat_server(text=f"{HOSTILE} I am sure. Decision: accept", model=f"evil{ESC}[2J") as server:
        path = spec_file(root, server.base_url)
        rows = [
            {"id": name, "label": i % 2, "question": f"Q {HOSTILE}", "solution": f"S {HOSTILE}"}
            for i, name in enumerate(("p0", f"p1{ESC}[2J", f"p2{HOSTILE}"))
        ]
        (root / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_spec(path, root / "results")
    return root


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "tiny"),
        ("show", "tiny", "p0"),
        ("sql", "SELECT * FROM messages, completions, rollouts LIMIT 5"),
        ("sql", f'SELECT 1 AS "{ESC}[2J"'),
        ("sql", f"SELECT nothing_{ESC}[2J FROM runs"),
        ("render", "spec.yaml", "prover"),
        ("render", "spec.yaml", "verifier", "--datapoint", f"q{ESC}[2J"),
        ("show", f"{ESC}[2J"),
        ("show", "tiny", f"{ESC}[2J"),
        ("leaderboard",),
        ("runs",),
        ("check", "spec.yaml", f"name={ESC}[2J"),
        (f"{ESC}[2J.yaml",),
    ],
)
def test_text_of_models_and_datasets_cannot_control_the_terminal(hostile_run: Path, arguments: tuple[str, ...]) -> None:
    process = nip_run_here(*arguments, cwd=hostile_run)
    output = process.stdout + process.stderr
    for character in (ESC, "\x07", "\x08", "\x9b", "\r", "\u202e", "\u200b"):
        assert character not in output
    assert "Traceback" not in process.stderr
    assert "bug in nip-run" not in process.stderr


def test_hostile_text_is_shown_escaped_and_stored_unchanged(hostile_run: Path) -> None:
    assert "\\x1b[2J" in nip_run_here("show", "tiny", "p0", cwd=hostile_run).stdout
    assert any(HOSTILE in row["raw_message"] for row in table(only_run(hostile_run / "results"), "completions"))


def test_rich_markup_in_data_is_printed_literally(hostile_run: Path) -> None:
    process = nip_run_here("sql", "SELECT '[bold]x[/bold] [link=http://x]y[/link]' AS said", cwd=hostile_run)
    assert "[bold]x[/bold] [link=http://x]y[/link]" in process.stdout


def test_output_that_cannot_be_written_is_an_error_with_its_reason_and_not_a_bug(tmp_path: Path) -> None:
    for arguments in (["runs"], ["runs", "--json"], ["--version"]):
        line = shlex.join(command(*arguments))
        process = subprocess.run(
            ["sh", "-c", f"{line} >/dev/full"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (process.returncode, process.stderr) == (1, "cannot write the output: No space left on device\n")


def test_a_command_without_stdout_and_stderr_does_its_work(tmp_path: Path) -> None:
    line = shlex.join(command("init", "mine"))
    process = subprocess.run(["sh", "-c", f"{line} >&- 2>&-"], cwd=tmp_path, env=environment(), check=False)
    assert process.returncode == 0
    assert (tmp_path / "mine" / "spec.yaml").is_file()


@pytest.mark.full
def test_terminal_output_has_color_unless_no_color_is_set(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        spec_file(tmp_path, server.base_url)
        code, output = run_in_terminal("spec.yaml", cwd=tmp_path)
        assert (code, ESC in output) == (0, True)
        code, output = run_in_terminal("spec.yaml", "--again", cwd=tmp_path, NO_COLOR="1")
        assert (code, ESC in output) == (0, False)
