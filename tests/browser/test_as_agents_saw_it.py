"""What a game's page shows "as X saw it" is what stands in the chats that X was sent, and what X said itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.pages.report.games import GamePage, games_of
from runner.results.folder import RunFolder
from tests.browser.conftest import Opens
from tests.support.paths import ROOT
from tests.support.report_pages import report
from tests.support.runs import only_run, run_spec

GAMES = 3


def texts_of_agent(game: GamePage, agent: str) -> str:
    """All that an agent was sent, and all that it answered."""
    sent = [one["content"] for (_, to), chat in game.chats.items() if to == agent for one in chat]
    own = [message.text for played in game.rollout.rounds for message in played.messages if message.agent == agent]
    return "\n".join([*sent, *own])


def of_others(game: GamePage, agent: str) -> set[str]:
    return {message.text for played in game.rollout.rounds for message in played.messages if message.agent != agent}


@pytest.mark.parametrize("protocol", ["mnip", "adp", "debate", "merlin_arthur", "nip", "solo_verifier"])
def test_an_agents_view_has_what_it_was_told_and_nothing_else(protocol: str, watched: Opens, tmp_path: Path) -> None:
    run_spec(ROOT / "specs" / f"{protocol}.yaml", tmp_path / "results", f"dataset.limit={GAMES}")
    run = only_run(tmp_path / "results")
    (tmp_path / "report.html").write_bytes(report(run))
    one = watched()
    page = one.open(tmp_path / "report.html")
    unseen = 0
    for game in list(games_of(RunFolder(run)))[:GAMES]:
        for agent in game.details.protocol.agent_names:
            shown = as_seen(one, page, run.name, game, agent)
            known = texts_of_agent(game, agent)
            heard = {text.strip() for text in of_others(game, agent)}
            missing = [text for text in heard if text in known and text not in shown]
            leaked = [text for text in heard if text not in known and text in shown]
            assert (agent, missing, leaked) == (agent, [], [])
            unseen += sum(text not in known for text in heard)
            facts = page.locator("#view aside.facts").inner_text()
            assert not {"Label", "Verdict", "Outcome", "Rewards", "Stance"} & set(facts.splitlines())
            assert page.locator("#view span.verdict").count() == 0
            assert page.locator("#view .said").count() <= sum(
                (number, agent) in game.chats for number, _ in enumerate(game.rollout.rounds)
            )
            others = [name for name in game.details.protocol.agent_names if name != agent]
            for name in others:
                assert page.locator(f"#view article[aria-label='{name}'] details").count() == 0
                assert page.locator(f"#view article[aria-label='{name}'] .said").count() == 0
    assert unseen > 0 or protocol not in ("mnip", "debate")  # there somebody is not told something


def as_seen(one: Any, page: Any, run_id: str, game: GamePage, agent: str) -> str:
    """The whole text of the page of a game as an agent saw it, what is folded up unfolded."""
    one.navigate(f"run/{run_id}/game/{game.rollout.job.rollout_id}?as={agent}")
    page.wait_for_function(
        "([id, name]) => document.querySelector('header.game .which')?.textContent.includes(id)"
        " && document.querySelector('header.game [aria-pressed=true]')?.textContent === `As ${name} saw it`",
        arg=[game.rollout.job.rollout_id, agent],
    )
    text: str = page.locator("#view").evaluate("one => one.textContent")
    return text
