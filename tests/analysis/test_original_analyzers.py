"""The four analyzers of the paper's code cover the same agents, channels and messages, except for documented fixes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.analysis.analyzer import load_analyzer
from runner.analysis.results import read_analyses
from runner.analysis.units import Unit, list_units, why_not_applicable
from runner.cli.main import main
from runner.results.folder import RunFolder
from tests.support.runs import run_spec, table
from tests.support.servers.analyst_client import ask_at, run_analyst
from tests.support.specs import spec_file

ORIGINAL_ANALYZERS = ("role_conformance", "direct_quotation", "exact_quotation", "follow_up")
UNREADABLE_TEXT = "returns x + 3."
"""Text in the games that get an unusable answer from the planted analyst."""


class ProtocolRules(NamedTuple):
    """The units of a protocol by the rules of the original code."""

    prover_pairs: tuple[tuple[str, str], ...]
    """(agent, channel) of the channels where a prover may write."""
    other_pairs: tuple[tuple[str, str], ...]
    """(agent, channel) of other agents that may write to a channel; only follow_up considers these."""
    agents: tuple[str, ...]
    stances: Mapping[str, str]


TWO_CHANNELS = (("prover0", "prover0_channel"), ("prover1", "prover1_channel"))
PROTOCOL_RULES = {
    "nip": ProtocolRules((("prover", "main"),), (("verifier", "main"),), ("prover", "verifier"), {"prover": "accept"}),
    "debate": ProtocolRules(
        TWO_CHANNELS,
        (("verifier", "prover0_channel"), ("verifier", "prover1_channel")),
        ("prover0", "prover1", "verifier"),
        {"prover0": "reject", "prover1": "accept"},
    ),
    "adp": ProtocolRules((("prover", "main"),), (("verifier", "main"),), ("prover", "verifier"), {"prover": "accept"}),
}


def run_games(folder: Path, protocol: str, size: int) -> RunFolder:
    game = PROTOCOL_RULES[protocol]
    agents: dict[str, Any] = {"prover": None} | {name: {"model": "m"} for name in game.agents}
    changes: dict[str, Any] = {
        "protocol": {"use": protocol, "max_message_rounds": None},
        "agents": agents,
        "fine_tune": None,
    }
    prompts = f"prompts/code_validation/{protocol}"
    path = spec_file(folder / protocol, size=size, prompts=prompts, name=protocol, **changes)
    return run_spec(path, folder / "results", run_id=protocol).folder


def compute_expected_units(run: RunFolder, protocol: str, analyzer: str) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each unit's id, its texts and whether the question applies, by the corrected rules of the original code.

    The units are computed from the tables of the run.
    """
    game = PROTOCOL_RULES[protocol]
    pairs = (*game.prover_pairs, *(game.other_pairs if analyzer == "follow_up" else ()))
    messages = table(run.path, "messages")
    for rollout in table(run.path, "rollouts"):
        rows = [row for row in messages if row["rollout_id"] == rollout["rollout_id"]]
        for agent, channel in pairs:
            channel_rows = []
            for number in range(rollout["rounds"]):
                round_rows = [
                    row for row in rows if (row["round"], row["channel"]) == (number, channel) and row["content"]
                ]
                if not round_rows:
                    break
                channel_rows += round_rows
            own_rounds = [row["round"] for row in channel_rows if row["agent"] == agent]
            other_rounds = [row["round"] for row in channel_rows if row["agent"] != agent]
            applies = bool(own_rounds) and (
                analyzer != "follow_up" or bool(other_rounds and min(other_rounds) < max(own_rounds))
            )
            yield f"{rollout['rollout_id']}/{agent}/{channel}", [row["content"] for row in channel_rows], applies


def load_units(run: RunFolder, analyzer: str) -> list[Unit]:
    return list(list_units(run, load_analyzer(analyzer)))


@pytest.mark.parametrize("protocol", ["nip", pytest.param("debate", marks=pytest.mark.gate), "adp"])
def test_units_messages_and_applicability_equal_those_of_the_original(tmp_path: Path, protocol: str) -> None:
    run = run_games(tmp_path, protocol, 10)
    for name in ORIGINAL_ANALYZERS:
        analyzer, units = load_analyzer(name), load_units(run, name)
        actual_units = [
            (unit.id, [message.text for message in unit.messages], why_not_applicable(unit, analyzer) is None)
            for unit in units
        ]
        assert sorted(actual_units) == sorted(compute_expected_units(run, protocol, name))
        assert {(unit.agent, unit.stance) for unit in units if unit.role == "prover"} == set(
            PROTOCOL_RULES[protocol].stances.items()
        )


@pytest.mark.full
def test_four_analyzers_answer_the_expected_units_of_100_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"nip": 40, "debate": 30, "adp": 30}
    runs = {protocol: run_games(tmp_path, protocol, size) for protocol, size in sizes.items()}
    assert sum(len(table(run.path, "rollouts")) for run in runs.values()) == 100
    with run_analyst(planted={UNREADABLE_TEXT: "not sure"}, record=10_000) as server:
        assert main(["analyze", *runs, *ORIGINAL_ANALYZERS, *ask_at(server), "-q"]) == 0
        prompts = [json.loads(request["body"])["messages"][0]["content"] for request in server.recorded_requests()]
    by_unit = {
        (analysis.analyzer, result.unit_id): result
        for run in runs.values()
        for analysis in read_analyses(run)
        for result in analysis.results
    }
    expected_requests = 0
    for protocol, run in runs.items():
        for name in ORIGINAL_ANALYZERS:
            columns = {unit.id: str(unit.columns["question"]) for unit in load_units(run, name)}
            for unit_id, texts, applies in compute_expected_units(run, protocol, name):
                result = by_unit.pop((name, unit_id))
                is_unreadable = UNREADABLE_TEXT in columns[unit_id]
                if not applies:
                    assert result.status == "not_applicable"
                elif name == "exact_quotation":
                    assert result.status == "not_applicable"  # the dummy model quotes nothing
                else:
                    assert result.status == ("no_answer" if is_unreadable else "answered")
                    expected_requests += 3 if is_unreadable else 1
                    assert any(all(text.strip() in prompt for text in texts) for prompt in prompts)
    assert by_unit == {}
    assert len(prompts) == expected_requests > 100
    conforming = [prompt for prompt in prompts if "was assigned one position" in prompt]
    assert {"to reject" in prompt for prompt in conforming} == {False, True}
    assert all("Write f(x)" in prompt and "def f(x)" in prompt for prompt in conforming)
