"""The games of a run as the page's script reads them: complete, with each text stored once."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.pages.packing import PIECE_BYTES, resolve_text
from runner.pages.report.games import PIECE_ROWS, GamePage, GamesData, games_of, row_of
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.runs.finished.sent_prompts import sent_prompts
from runner.spec.loader import load_spec
from tests.support.paths import ROOT
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with unparsable answers, failed calls and log-probabilities."""
    folder = tmp_path_factory.mktemp("faulty")
    with run_chat_server(faults={"bad_decision": 0.3, "server_error": 0.2}, logprobs=True, seed=3) as server:
        path = spec_file(
            folder,
            server.base_url,
            size=8,
            fine_tune=None,
            verdict={"confidence": "logprob"},
            models={"m": {"logprobs": True, "top_logprobs": 5, "price": {"input": 2.0, "output": 8.0}}},
        )
        run(load_spec(path), folder / "results")
    (run_folder,) = Results(folder / "results").runs()
    return run_folder


def pack_games(games: Iterator[GamePage]) -> tuple[dict[str, Any], dict[str, Any]]:
    pieces: dict[str, bytes] = {}
    data = GamesData("r0", pieces.__setitem__)
    for game in games:
        data.add(game, row_of(game))
    return data.about(), {name: json.loads(gzip.decompress(piece)) for name, piece in pieces.items()}


@pytest.mark.full
def test_every_attempt_and_failed_call_of_the_journal_is_in_the_page_data(faulty_run: RunFolder) -> None:
    games = list(games_of(faulty_run))
    _, pieces = pack_games(iter(games))
    turns = [turn for game in pieces["r0-games-0"]["games"] for turn in game["turns"]]
    answers = [answer for turn in turns for answer in turn["answers"]]
    calls = [call for game in games for call in game.rollout.calls]
    assert len(answers) == sum(call.is_answer for call in calls)
    assert sum("unusable" in answer for answer in answers) > 0
    assert sum(len(turn["failed"]) for turn in turns) == sum(len(game.details.failures) for game in games) > 0
    assert sum(answer["tokens"][1] for answer in answers) == sum(call.completion_tokens for call in calls)
    assert any("logprobs" in answer for answer in answers)
    assert sum(answer["usd"] for answer in answers) == pytest.approx(faulty_run.manifest().cost_usd) != 0


@pytest.mark.full
def test_agents_of_a_game_with_candidates_have_the_tokens_and_costs_of_their_selectors(tmp_path: Path) -> None:
    with run_chat_server() as server:
        model = ("provider=openai", "+models.offline.model=tiny", f"+models.offline.base_url={server.base_url}")
        price = "+models.offline.price={input: 1000, output: 4000}"
        overrides = ("models.offline." + model[0], *model[1:], price, "dataset.limit=2")
        run_spec(ROOT / "specs" / "best_of_n_debate.yaml", tmp_path / "results", *overrides)
    folder = RunFolder(only_run(tmp_path / "results"))
    _, pieces = pack_games(games_of(folder))
    columns, games = pieces["r0-list-0"]["columns"], pieces["r0-games-0"]["games"]
    agents = ("prover0", "prover1", "verifier")
    for place, game in enumerate(games):
        tokens = columns["prompt_tokens"][place] + columns["completion_tokens"][place]
        assert sum(columns[f"tokens.{name}"][place] for name in agents) == tokens
        for turn in game["turns"]:
            selected = {answer.get("vote", 0) for answer in turn["answers"] if answer.get("selected")}
            assert len(selected) == (turn["agent"] != "verifier")
    total = sum(usd for game in games for usd in game["costs"].values())
    assert total == pytest.approx(folder.manifest().cost_usd) != 0


def test_chat_of_a_turn_equals_the_sent_prompt(faulty_run: RunFolder) -> None:
    _, pieces = pack_games(games_of(faulty_run))
    piece = pieces["r0-games-0"]
    reconstructor = Reconstructor(faulty_run, played_plan(faulty_run))
    try:
        for rollout, game in zip(reconstructor.rollouts(), piece["games"], strict=True):
            for agent in ("prover", "verifier"):
                sent_chats = {
                    prompt.round: prompt.body["messages"]
                    for prompt in sent_prompts(reconstructor, rollout, agent, None)
                }
                page_chats = {turn["round"]: turn["chat"] for turn in game["turns"] if turn["agent"] == agent}
                assert {
                    number: [{**message, "content": resolve_text(piece["texts"], message["text"])} for message in chat]
                    for number, chat in page_chats.items()
                } == {
                    number: [
                        {**message, "text": packed["text"]}
                        for message, packed in zip(chat, page_chats[number], strict=True)
                    ]
                    for number, chat in sent_chats.items()
                }
    finally:
        reconstructor.close()


def test_game_row_has_the_columns_for_filters_and_sorting(faulty_run: RunFolder) -> None:
    games = list(games_of(faulty_run))
    for game in games:
        row, rollout = row_of(game), game.rollout
        by_agent = {name: [c for c in rollout.calls if c.agent == name] for name in ("prover", "verifier")}
        assert row["retries"] == row["retries.prover"] + row["retries.verifier"]
        for name, calls in by_agent.items():
            assert row[f"tokens.{name}"] == sum(c.prompt_tokens + c.completion_tokens for c in calls)
            assert row[f"reward.{name}"] == rollout.rewards.get(name, 0.0)
        assert row["x.solution"].startswith("def f(x):")
    assert any(row_of(game)["retries"] for game in games)


def test_excerpt_comes_from_the_first_column_longer_than_one_word(tmp_path: Path) -> None:
    spec = spec_file(tmp_path / "spec", size=2, fine_tune=None)
    data = spec.with_name("data.jsonl")
    rows = [{"topic": "sums", **json.loads(line)} for line in data.read_text("utf-8").splitlines()]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    run_spec(spec, tmp_path / "results")
    games = games_of(RunFolder(only_run(tmp_path / "results")))
    assert {row_of(game)["excerpt"] for game in games} == {
        "Write f(x) that returns x + 0.",
        "Write f(x) that returns x + 1.",
    }


@pytest.mark.full
def test_many_games_are_split_into_pieces_indexed_by_position(faulty_run: RunFolder) -> None:
    game = next(games_of(faulty_run))
    about, pieces = pack_games(iter([game] * (PIECE_ROWS + 1)))
    assert about["count"] == PIECE_ROWS + 1
    assert about["lists"] == [0, PIECE_ROWS]
    assert [pieces[f"r0-list-{n}"]["count"] for n in range(2)] == [PIECE_ROWS, 1]
    assert [pieces[f"r0-games-{n}"]["first"] for n in range(len(about["pieces"]))] == about["pieces"]
    assert sum(len(piece["games"]) for name, piece in pieces.items() if "-games-" in name) == PIECE_ROWS + 1


@pytest.mark.full
def test_piece_is_closed_at_its_size_limit(tmp_path: Path) -> None:
    with run_chat_server(prose=60_000) as server:
        path = spec_file(
            tmp_path, server.base_url, size=8, fine_tune=None, agents={"prover": {"max_response_words": 1}}
        )
        run(load_spec(path), tmp_path / "results")
    (folder,) = Results(tmp_path / "results").runs()
    about, pieces = pack_games(games_of(folder))
    sizes = [
        sum(len(text) for text in piece["texts"]) for name, piece in pieces.items() if name.startswith("r0-games-")
    ]
    assert len(sizes) == len(about["pieces"])
    assert all(size < PIECE_BYTES + 500_000 for size in sizes)
    texts = [text for piece in pieces.values() for text in piece.get("texts", ())]
    assert len([text for text in texts if len(text) > 50_000]) == len({text for text in texts if len(text) > 50_000})
