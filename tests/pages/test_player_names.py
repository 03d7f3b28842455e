"""Every transcript names players as in the spec, with their stance and, once, their name in the chats."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from runner.api.display import RunResult
from runner.cli.terminal.transcript import print_transcript
from runner.exports.run_source import RunSource
from runner.pages.report.games import games_of
from runner.pages.report.plain_games import game_view, row_at
from runner.pages.report.run_site import runs_site
from runner.results.folder import RunFolder
from runner.runs.finished.result import FinishedRun
from tests.support.runs import run_spec
from tests.support.specs import debate_with_hints

REJECTS, ACCEPTS = "argues for reject", "argues for accept"


@pytest.fixture(scope="module")
def debate(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("debate")
    run = run_spec(debate_with_hints(folder), folder / "results", "protocol.min_message_rounds=3")
    return RunFolder(run.path)


def test_terminal_transcript_lists_players_and_repeats_their_stances(
    debate: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_transcript(next(games_of(debate)).details)
    output = capsys.readouterr().out
    players = f"prover0 (Expert_1; {REJECTS}), prover1 (Expert_2; {ACCEPTS}), verifier"
    assert f"players: {players}\n" in output
    headings = re.findall(r"^\[round \d+\] (.*)$", output, re.MULTILINE)
    assert {head for head in headings if head.startswith("prover0")} == {
        f"prover0 ({REJECTS}; prover0_channel, to prover1, verifier)"
    }
    assert not any("argues" in head for head in headings if head.startswith("verifier"))


def test_python_and_exported_transcripts_have_the_stances(debate: RunFolder) -> None:
    transcript = RunResult.of(FinishedRun.from_folder(debate)).transcript(next(games_of(debate)).rollout.job.rollout_id)
    assert transcript.stances == {"prover0": 0, "prover1": 1}
    assert f"] prover1 ({ACCEPTS}) in prover1_channel:" in str(transcript)
    assert f"<strong>prover1 ({ACCEPTS})</strong>" in transcript._repr_html_()
    game = next(iter(RunSource.load(debate).games()))
    contents = [message["content"] for message in game.conversation()]
    assert any(text.startswith(f"[round 1, prover0 ({REJECTS}) in prover0_channel]\n") for text in contents)
    assert any(text.startswith("[round 0, verifier ") for text in contents)
    assert not any("verifier (" in text.partition("\n")[0] for text in contents)


def test_page_without_javascript_has_both_names_and_the_stance(debate: RunFolder) -> None:
    data: dict[str, bytes] = {}
    about = runs_site([debate], data.__setitem__).about["runs"][0]
    pieces: dict[str, Any] = {name: json.loads(gzip.decompress(piece)) for name, piece in data.items()}
    games = pieces[f"{about['slug']}-games-0"]
    row = row_at(pieces[f"{about['slug']}-list-0"], 0)
    page = game_view(row, games["games"][0], games["texts"], about, before=None, after=None).render()
    assert f"<h3>prover0 (Expert_1; {REJECTS})</h3>" in page
    assert re.search("<h3>verifier(<|$)", page)
