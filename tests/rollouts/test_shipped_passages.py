"""The shipped designs with hidden passages have prompts and data, and play offline and on a server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from runner.base.package_data import PROTOCOLS
from runner.game.prompts.templates import template_names
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.quotations import locate_quote
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.spec.loader import load_spec
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server

CALLS_PER_GAME = {"debate_quotes": 7, "best_of_n_debate": 3 * 2 * (4 + 1) + 1}
"""The number of calls for each game of a design."""

ROWS = [json.loads(line) for line in (ROOT / "specs" / "data" / "passages.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", CALLS_PER_GAME)
def test_shipped_design_has_at_most_sixty_lines_and_uses_every_template(name: str) -> None:
    for path in (PROTOCOLS / f"{name}.yaml", ROOT / "specs" / f"{name}.yaml"):
        assert len(path.read_text().splitlines()) <= 60
    templates = {path.name.removesuffix(".jinja") for path in (ROOT / "prompts" / "passages" / name).iterdir()}
    assert templates == set(template_names(load_protocol(name)))


def test_no_module_names_a_shipped_design() -> None:
    for path in (ROOT / "runner").rglob("*.py"):
        assert not any(name in path.read_text() for name in CALLS_PER_GAME), path


def test_each_passage_has_one_true_and_one_false_claim() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 20
    labels: dict[str, list[int]] = {}
    for row in ROWS:
        labels.setdefault(row["passage_name"], []).append(row["label"])
    assert [sorted(pair) for pair in labels.values()] == [[0, 1]] * 10


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CALLS_PER_GAME)
def test_shipped_design_plays_offline_and_verifies_quotes_against_the_passage(name: str, tmp_path: Path) -> None:
    path = ROOT / "specs" / f"{name}.yaml"
    assert "no errors" in nip_run_here("check", str(path), cwd=tmp_path).stdout
    (estimate,) = estimate_costs(Plan(load_spec(path)))
    run = run_spec(path, tmp_path / "results").folder.path
    games = {row["rollout_id"]: row for row in table(run, "rollouts")}
    assert Counter(row["outcome"] for row in games.values()) == {"decided": 20}
    calls = table(run, "completions")
    assert estimate.calls == (len(calls), len(calls)) == (20 * CALLS_PER_GAME[name],) * 2
    passages = {row["id"]: row["passage"] for row in ROWS}
    messages = table(run, "messages")
    for message in messages:
        passage = passages[games[message["rollout_id"]]["datapoint_id"]]
        for mark, expected in (("verified_quote", True), ("unverified_quote", False)):
            for part in message["content"].split(f"<{mark}>")[1:]:
                assert (locate_quote(part.partition(f"</{mark}>")[0], passage) is not None) == expected
    assert {message["verified_quotes"] for message in messages} == {0, 1}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CALLS_PER_GAME)
def test_judges_prompts_never_contain_the_passage(name: str, tmp_path: Path) -> None:
    text = "SECRET.\nStatement: See <quote>The ferry to Osk</quote> and <quote>gold</quote>.\nBest: 2\nDecision: reject"
    with run_chat_server(text=text, record=1000) as server:
        overrides = [
            "dataset.limit=2", "models.offline={model: tiny, base_url: " + server.base_url + ", chat_format: openai}",
            "fine_tune=null",
        ]  # fmt: skip
        run = run_spec(ROOT / "specs" / f"{name}.yaml", tmp_path / "results", *overrides).folder.path
        chats = [json.loads(request["body"])["messages"] for request in server.recorded_requests()]
    judge_chats = [chat for chat in chats if chat[0]["content"].startswith("You are the judge")]
    assert len(judge_chats) == 2
    for chat in judge_chats:
        chat_text = "\n".join(message["content"] for message in chat)
        assert chat_text.count("<verified_quote>The ferry to Osk</verified_quote>") == 6
        assert chat_text.count("<unverified_quote>gold</unverified_quote>") == 6
        assert "rudder" not in chat_text.replace(ROWS[1]["claim"], "")
        assert "SECRET" not in chat_text
    rows = table(run, "messages")
    assert {(row["verified_quotes"], row["unverified_quotes"], row["quoted_words"]) for row in rows} == {(1, 1, 4)}
    if name == "best_of_n_debate":
        selected = [row["vote"] for row in table(run, "completions") if row["selected"]]
        assert selected == [1] * 12
