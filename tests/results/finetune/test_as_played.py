"""Training data equals the games: each chat in each file is one that the server received."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.game.prompts.chat_format import ChatFormat
from runner.game.protocols.rounds import Message
from runner.results.finetune.formats import FORMATS as FORMATS_OF
from runner.results.finetune.rollout_examples import supervised_examples
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from tests.support.files import json_lines, parquet_rows
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import merge_changes, spec_file

ONE_PROVER, TWO_PROVERS = (
    {"prover": {"model": "m"}},
    {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
)
PROTOCOLS: Mapping[str, tuple[int | None, Mapping[str, Any]]] = {
    "nip": (6, ONE_PROVER),
    "debate": (6, TWO_PROVERS),
    "mnip": (6, TWO_PROVERS),
    "adp": (None, ONE_PROVER),
    "merlin_arthur": (None, TWO_PROVERS),
    "solo_verifier": (None, {"prover": None}),
}
"""Rounds and provers of each protocol."""

FORMATS = ["openai", "trl", "verl"]


def protocol_changes(protocol: str, chat_format: str) -> dict[str, Any]:
    rounds, agents = PROTOCOLS[protocol]
    return {
        "protocol": {"use": protocol, "max_message_rounds": rounds},
        "prompts": f"prompts/code_validation/{protocol}",
        "agents": agents,
        "models": {"m": {"chat_format": chat_format}},
    }


def canonical_json(chat: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps(chat, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class LearnedTurn(NamedTuple):
    """A turn learned from a line of a file, with the chat before it."""

    chat: bytes
    answer: str
    is_last: bool


def read_learned_turns(path: Path) -> Iterator[tuple[dict[str, Any], list[LearnedTurn]]]:
    """Yield the trace and the learned turns of each line of a dataset."""
    rows = parquet_rows(path) if path.suffix == ".parquet" else json_lines(path)
    for trace, row in zip(json_lines(path.with_name(path.name + ".trace.jsonl")), rows, strict=True):
        yield trace, list(iterate_learned_turns(row))


def iterate_learned_turns(row: Mapping[str, Any]) -> Iterator[LearnedTurn]:
    if "messages" in row:
        assistant_indices = [i for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        plain = [{name: message[name] for name in message if name != "weight"} for message in row["messages"]]
        for i in assistant_indices:
            if row["messages"][i].get("weight") != 0:
                yield LearnedTurn(canonical_json(plain[:i]), plain[i]["content"], i == assistant_indices[-1])
    elif "input" in row:
        yield LearnedTurn(canonical_json(row["input"]["messages"]), row["preferred_output"][0]["content"], True)
    elif "reward_model" in row:
        # Parquet has the same fields for all messages: a missing sender is null.
        chat = [{name: value for name, value in message.items() if value is not None} for message in row["prompt"]]
        yield LearnedTurn(canonical_json(chat), row["extra_info"]["response"], True)
    else:
        (answer,) = row["completion"] if "completion" in row else row["chosen"]
        yield LearnedTurn(canonical_json(row["prompt"]), answer["content"], True)


class ReceivedRequests:
    """The chats that a server received, and the request hashes in the journal of the run."""

    def __init__(self, bodies: Sequence[dict[str, Any]], run: Path) -> None:
        self.received = {canonical_json(json.loads(request["body"])["messages"]) for request in bodies}
        self.hashes: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for record in journal_records(run):
            if record["kind"] == "call" and "asked" in record:  # an answer from a shared call has no own request
                datapoint, _, round_, agent, _ = record["sample"]
                self.hashes[datapoint, agent][round_].add(record["asked"][1])

    def check(self, path: Path) -> int:
        """Check every learned turn of a file, and return the number of turns."""
        size = 0
        for trace, learned_turns in read_learned_turns(path):
            rounds = self.hashes[trace["datapoint_id"], trace["agent"]]
            for turn in learned_turns:
                assert turn.chat in self.received, (path.name, turn.chat)
                chat_hash = hashlib.sha256(b"messages\0" + turn.chat).hexdigest()[:32]
                assert chat_hash in (rounds[trace["round"]] if turn.is_last else set().union(*rounds.values()))
                size += 1
        return size


def read_report(run: Path) -> dict[str, dict[str, Any]]:
    return {row["file"]: row for row in json.loads((run / "fine_tune" / "report.json").read_text())}


def all_chat_formats(*sample: tuple[str, str]) -> list[Any]:
    """Return all protocols in both chat formats; only those in the sample belong to the gate tier."""
    pairs = [(protocol, chat_format) for protocol in PROTOCOLS for chat_format in ("openai", "alternating")]
    return [pytest.param(*pair, marks=() if pair in sample else pytest.mark.full) for pair in pairs]


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "chat_format"), all_chat_formats(("nip", "openai"), ("debate", "alternating")))
def test_every_turn_is_learned_after_the_chat_that_was_sent(tmp_path: Path, protocol: str, chat_format: str) -> None:
    overrides = merge_changes(protocol_changes(protocol, chat_format), {"fine_tune": {"formats": FORMATS}})
    with run_chat_server(record=10_000) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, size=4, **overrides), tmp_path / "results").folder.path
        received = ReceivedRequests(server.recorded_requests(), run)
    report, call_counts = read_report(run), Counter(row["agent"] for row in table(run, "completions"))
    assert all((row["chat_format"], row["as_played"]) == (chat_format, True) for row in report.values())
    assert len(call_counts) == len(PROTOCOLS[protocol][1]) - ("prover0" in call_counts) + (protocol != "solo_verifier")
    for owner, turn_count in {
        **{f"agents/{name}": size for name, size in call_counts.items()},
        "m": call_counts.total(),
    }.items():
        for kind in ("sft.jsonl", "sft.trl.jsonl", "rl.parquet"):
            omitted = report[f"{owner}.{kind}"]["left_out"]
            assert set(omitted) <= {"duplicate line", "the agent said nothing"}
            # Each turn occurs once, except turns of games that are identical byte for byte.
            checked = received.check(run / "fine_tune" / f"{owner}.{kind}")
            assert checked == turn_count or (checked < turn_count and omitted["duplicate line"])


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "chat_format"), all_chat_formats(("mnip", "openai")))
def test_answers_are_preferred_after_the_chat_that_was_sent(tmp_path: Path, protocol: str, chat_format: str) -> None:
    overrides = protocol_changes(protocol, chat_format)
    if PROTOCOLS[protocol][0] is not None:
        overrides["protocol"]["max_message_rounds"] = 4
    overrides["rollouts"] = {"num_responses_per_timestep": 2}
    with run_chat_server(record=10_000) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, size=12, **overrides), tmp_path / "results").folder.path
        received = ReceivedRequests(server.recorded_requests(), run)
    report = read_report(run)
    assert {name.rpartition("/")[2].split(".")[1] for name in report} == {"dpo"}
    for kind in ("dpo.jsonl", "dpo.trl.jsonl"):
        assert received.check(run / "fine_tune" / f"m.{kind}") == report[f"m.{kind}"]["examples"] > 0


@pytest.mark.full
@pytest.mark.parametrize("chat_format", ["openai", pytest.param("alternating", marks=pytest.mark.full)])
def test_chats_changed_by_the_wire_format_are_learned_as_the_server_got_them(tmp_path: Path, chat_format: str) -> None:
    model = {"chat_format": chat_format, "send_name": False, "system_role": "developer"}
    with run_chat_server(record=10_000) as server:
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": model}, fine_tune={"formats": FORMATS})
        run = run_spec(path, tmp_path / "results").folder.path
        received = ReceivedRequests(server.recorded_requests(), run)
    replay_models = {"m": {"provider": "replay", "run": str(run)}}  # sends the same requests without these settings
    path = spec_file(tmp_path, size=2, models=replay_models, fine_tune={"formats": FORMATS})
    for folder in (run, run_spec(path, tmp_path / "replayed").folder.path):
        for kind in ("sft.jsonl", "sft.trl.jsonl", "rl.parquet"):
            assert received.check(folder / "fine_tune" / f"m.{kind}")


# Division of chats into examples


def test_continued_chat_is_one_example_and_changed_chat_is_several(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=4), tmp_path / "results").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    rollouts, agents = list(reconstructor.rollouts()), reconstructor.plan.agents()
    reconstructor.close()
    long_rollouts = [rollout for rollout in rollouts if len(rollout.rounds) > 3]
    assert long_rollouts
    for rollout in long_rollouts:
        (full_chat,) = supervised_examples(agents["prover"], rollout)  # its instructions stay
        assert len(full_chat.learned) == sum("prover" in round_.raw for round_ in rollout.rounds) > 1
        split_chats = supervised_examples(agents["verifier"], rollout)  # its instructions count down
        assert [chat.round for chat in split_chats] == list(range(0, len(rollout.rounds), 2))
        assert all(chat.learned == [len(chat.messages) - 1] for chat in split_chats)
        assert all([*chat.rounds.values()] == [chat.round] for chat in split_chats)


@pytest.mark.full
def test_excluded_turns_are_only_context_of_later_turns(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=4), tmp_path / "results").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    agents = reconstructor.plan.agents()
    long = next(rollout for rollout in reconstructor.rollouts() if len(rollout.rounds) > 3)
    reconstructor.close()

    def cut(round_: int, agent: str) -> Any:
        rounds = list(long.rounds)
        rounds[round_] = replace(rounds[round_], token_limits={agent: True})
        return replace(long, rounds=rounds)

    before = supervised_examples(agents["prover"], long)
    (chat,) = supervised_examples(agents["prover"], cut(1, "prover"))
    assert (chat.messages, chat.learned) == (before[0].messages, before[0].learned[1:])
    assert [turn.messages for turn in chat.single_turns()] == [
        chat.messages[: end + 1] for end in chat.learned
    ]  # fmt: skip
    assert supervised_examples(agents["verifier"], cut(2, "verifier")) == [
        chat for chat in supervised_examples(agents["verifier"], long) if chat.round != 2
    ]  # fmt: skip
    nothing = replace(long, rounds=[replace(r, token_limits=dict.fromkeys(r.raw, True)) for r in long.rounds])
    (chat,) = supervised_examples(agents["verifier"], nothing)
    assert FORMATS_OF["trl", "sft"].problem(chat) == "no turn that may be learnt"


def test_messages_after_the_last_turn_are_kept_on_request(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=4), tmp_path / "results", "protocol.max_message_rounds=4").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    agents = reconstructor.plan.agents()
    long = next(rollout for rollout in reconstructor.rollouts() if len(rollout.rounds) == 3)
    reconstructor.close()
    rounds = [*long.rounds[:2], replace(long.rounds[2], messages=[Message("main", "verifier", "Thanks.")])]
    cases: list[tuple[ChatFormat, dict[str, str]]] = [
        ("openai", {"role": "user", "name": "Verifier", "content": "Thanks."}),
        ("alternating", {"role": "user", "content": "Verifier: Thanks."}),
    ]
    for chat_format, last in cases:
        prover = agents["prover"].with_chat_format(chat_format)
        (cut,) = supervised_examples(prover, replace(long, rounds=rounds))
        (full,) = supervised_examples(prover, replace(long, rounds=rounds), ensure_last_message_is_assistant=False)
        assert full.messages == [*cut.messages, last]
        assert full.learned == cut.learned
