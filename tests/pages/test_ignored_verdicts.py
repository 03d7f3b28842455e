"""Transcripts mark a verdict that does not count because the verifier gave it too early."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner.cli.terminal.transcript import print_transcript
from runner.pages.report.games import games_of
from runner.pages.report.plain_games import game_view, row_at
from runner.pages.report.run_site import runs_site
from runner.results.folder import RunFolder
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

IGNORED = "verdict ignored: too early"


def test_transcripts_mark_an_ignored_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_chat_server(text="I know this.\n\nDecision: accept") as server:
        spec = spec_file(tmp_path, server.base_url, size=1)
        folder = RunFolder(run_spec(spec, tmp_path / "results", "protocol.min_message_rounds=3").path)
    print_transcript(next(games_of(folder)).details)
    verdicts = re.findall(r"^\[round (\d)\] verifier \((.*)\)$", capsys.readouterr().out, re.MULTILINE)
    assert verdicts == [("0", f"decides: accept; {IGNORED}"), ("2", "decides: accept")]

    data: dict[str, bytes] = {}
    about = runs_site([folder], data.__setitem__).about["runs"][0]
    pieces: dict[str, Any] = {name: json.loads(gzip.decompress(piece)) for name, piece in data.items()}
    games = pieces[f"{about['slug']}-games-0"]
    assert [
        (turn["round"], turn["ignored"]) for turn in games["games"][0]["turns"] if turn["decision"] is not None
    ] == [
        (0, True),
        (2, False),
    ]
    row = row_at(pieces[f"{about['slug']}-list-0"], 0)
    page = game_view(row, games["games"][0], games["texts"], about, before=None, after=None).render()
    assert page.count(IGNORED) == 1
