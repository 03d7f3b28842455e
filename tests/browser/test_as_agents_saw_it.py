"""A game's page "as X saw it" shows only messages that X was sent or wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.pages.report.games import GamePage, games_of
from runner.results.folder import RunFolder
from tests.browser.conftest import PageOpener
from tests.support.paths import ROOT
from tests.support.report_pages import report
from tests.support.runs import only_run, run_spec

GAMES = 3


def join_agent_texts(game: GamePage, agent: str) -> str:
    """Return all texts that an agent was sent or wrote."""
    sent = [chat_message["content"] for (_, to), chat in game.chats.items() if to == agent for chat_message in chat]
    own_texts = [
        message.text for round_ in game.rollout.rounds for message in round_.messages if message.agent == agent
    ]
    return "\n".join([*sent, *own_texts])


def texts_of_others(game: GamePage, agent: str) -> set[str]:
    return {message.text for round_ in game.rollout.rounds for message in round_.messages if message.agent != agent}


@pytest.mark.parametrize("protocol", ["mnip", "adp", "debate", "merlin_arthur", "nip", "solo_verifier"])
def test_agent_view_shows_only_what_the_agent_was_sent_or_said(
    protocol: str, open_watched: PageOpener, tmp_path: Path
) -> None:
    run_spec(ROOT / "specs" / f"{protocol}.yaml", tmp_path / "results", f"dataset.limit={GAMES}")
    run = only_run(tmp_path / "results")
    (tmp_path / "report.html").write_bytes(report(run))
    watched_page = open_watched()
    page = watched_page.open(tmp_path / "report.html")
    unseen_count = 0
    for game in list(games_of(RunFolder(run)))[:GAMES]:
        for agent in game.details.protocol.agent_names:
            view_text = read_agent_view(watched_page, page, run.name, game, agent)
            agent_texts = join_agent_texts(game, agent)
            other_texts = {text.strip() for text in texts_of_others(game, agent)}
            missing = [text for text in other_texts if text in agent_texts and text not in view_text]
            leaked = [text for text in other_texts if text not in agent_texts and text in view_text]
            assert (agent, missing, leaked) == (agent, [], [])
            unseen_count += sum(text not in agent_texts for text in other_texts)
            facts = page.locator("#view aside.facts").inner_text()
            assert not {"Label", "Verdict", "Outcome", "Rewards", "Stance"} & set(facts.splitlines())
            assert page.locator("#view span.verdict").count() == 0
            assert page.locator("#view .said").count() <= sum(
                (number, agent) in game.chats for number, _ in enumerate(game.rollout.rounds)
            )
            other_names = [name for name in game.details.protocol.agent_names if name != agent]
            for name in other_names:
                assert page.locator(f"#view article[aria-label='{name}'] details").count() == 0
                assert page.locator(f"#view article[aria-label='{name}'] .said").count() == 0
    assert unseen_count > 0 or protocol not in ("mnip", "debate")  # these protocols hide messages from some agents


def read_agent_view(watched_page: Any, page: Any, run_id: str, game: GamePage, agent: str) -> str:
    """Return the complete text of a game's page as an agent saw it, including folded parts."""
    watched_page.navigate(f"run/{run_id}/game/{game.rollout.job.rollout_id}?as={agent}")
    page.wait_for_function(
        "([id, name]) => document.querySelector('header.game .which')?.textContent.includes(id)"
        " && document.querySelector('header.game [aria-pressed=true]')?.textContent === `As ${name} saw it`",
        arg=[game.rollout.job.rollout_id, agent],
    )
    text: str = page.locator("#view").evaluate("one => one.textContent")
    return text
