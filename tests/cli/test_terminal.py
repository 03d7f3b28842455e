"""What never reaches a terminal: nothing that a model or a dataset said can drive it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import nip_run_here
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

ESC = "\x1b"
HOSTILE = f"{ESC}]0;owned{ESC}\\{ESC}[2J{ESC}[31mred\x07\x9b2J\r\x08 \u202egnp\u202c\u200b"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which datapoints and models speak in escape sequences."""
    made = tmp_path_factory.mktemp("hostile")
    with run_chat_server(text=f"{HOSTILE} I am sure. Decision: accept", model=f"evil{ESC}[2J") as server:
        path = spec_file(made, server.base_url)
        rows = [
            {"id": name, "label": i % 2, "question": f"Q {HOSTILE}", "solution": f"S {HOSTILE}"}
            for i, name in enumerate(("p0", f"p1{ESC}[2J", f"p2{HOSTILE}"))
        ]
        (made / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_spec(path, made / "results")
    return made


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    "words",
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
def test_nothing_that_a_model_or_a_dataset_said_can_drive_the_terminal(hostile: Path, words: tuple[str, ...]) -> None:
    done = nip_run_here(*words, cwd=hostile)
    said = done.stdout + done.stderr
    for character in (ESC, "\x07", "\x08", "\x9b", "\r", "\u202e", "\u200b"):
        assert character not in said
    assert "Traceback" not in done.stderr
    assert "bug in nip-run" not in done.stderr


def test_what_was_said_is_still_shown_and_kept_whole_in_the_records(hostile: Path) -> None:
    assert "\\x1b[2J" in nip_run_here("show", "tiny", "p0", cwd=hostile).stdout
    assert any(HOSTILE in row["raw_message"] for row in table(only_run(hostile / "results"), "completions"))


def test_markup_of_rich_in_the_words_of_a_model_is_text(hostile: Path) -> None:
    done = nip_run_here("sql", "SELECT '[bold]x[/bold] [link=http://x]y[/link]' AS said", cwd=hostile)
    assert "[bold]x[/bold] [link=http://x]y[/link]" in done.stdout


@pytest.mark.full
def test_on_a_terminal_there_is_colour_and_with_no_color_there_is_none(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        spec_file(tmp_path, server.base_url)
        code, seen = run_in_terminal("spec.yaml", cwd=tmp_path)
        assert (code, ESC in seen) == (0, True)
        code, seen = run_in_terminal("spec.yaml", "--again", cwd=tmp_path, NO_COLOR="1")
        assert (code, ESC in seen) == (0, False)
