"""What is trained on is what is played: each chat of each file is one that the server received."""

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

ONE, TWO = {"prover": {"model": "m"}}, {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}}
PROTOCOLS: Mapping[str, tuple[int | None, Mapping[str, Any]]] = {
    "nip": (6, ONE),
    "debate": (6, TWO),
    "mnip": (6, TWO),
    "adp": (None, ONE),
    "merlin_arthur": (None, TWO),
    "solo_verifier": (None, {"prover": None}),
}
"""Rounds and provers of each protocol."""

FORMATS = ["openai", "trl", "verl"]


def changes(protocol: str, chat_format: str) -> dict[str, Any]:
    rounds, agents = PROTOCOLS[protocol]
    return {
        "protocol": {"use": protocol, "max_message_rounds": rounds},
        "prompts": f"prompts/code_validation/{protocol}",
        "agents": agents,
        "models": {"m": {"chat_format": chat_format}},
    }


def canonical(chat: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps(chat, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Learnt(NamedTuple):
    """A turn that is learnt from a line of a file, after a chat."""

    chat: bytes
    answer: str
    is_last: bool


def learnt(path: Path) -> Iterator[tuple[dict[str, Any], list[Learnt]]]:
    """Each line of a dataset as its trace and the turns to learn of it."""
    rows = parquet_rows(path) if path.suffix == ".parquet" else json_lines(path)
    for trace, row in zip(json_lines(path.with_name(path.name + ".trace.jsonl")), rows, strict=True):
        yield trace, list(turns(row))


def turns(row: Mapping[str, Any]) -> Iterator[Learnt]:
    if "messages" in row:
        own = [i for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        plain = [{name: message[name] for name in message if name != "weight"} for message in row["messages"]]
        for i in own:
            if row["messages"][i].get("weight") != 0:
                yield Learnt(canonical(plain[:i]), plain[i]["content"], i == own[-1])
    elif "input" in row:
        yield Learnt(canonical(row["input"]["messages"]), row["preferred_output"][0]["content"], True)
    elif "reward_model" in row:
        # Parquet has the same fields for all messages: a sender that there is none of is null.
        chat = [{name: value for name, value in message.items() if value is not None} for message in row["prompt"]]
        yield Learnt(canonical(chat), row["extra_info"]["response"], True)
    else:
        (answer,) = row["completion"] if "completion" in row else row["chosen"]
        yield Learnt(canonical(row["prompt"]), answer["content"], True)


class ReceivedRequests:
    """What a server received, and the hashes in the journal of the run that asked it."""

    def __init__(self, bodies: Sequence[dict[str, Any]], run: Path) -> None:
        self.received = {canonical(json.loads(request["body"])["messages"]) for request in bodies}
        self.hashes: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for record in journal_records(run):
            if record["kind"] == "call" and "asked" in record:  # a part of another's answer was asked as that was
                datapoint, _, round_, agent, _ = record["sample"]
                self.hashes[datapoint, agent][round_].add(record["asked"][1])

    def check(self, path: Path) -> int:
        """Every learnt turn of a file; how many there are."""
        size = 0
        for trace, found in learnt(path):
            rounds = self.hashes[trace["datapoint_id"], trace["agent"]]
            for turn in found:
                assert turn.chat in self.received, (path.name, turn.chat)
                hashed = hashlib.sha256(b"messages\0" + turn.chat).hexdigest()[:32]
                assert hashed in (rounds[trace["round"]] if turn.is_last else set().union(*rounds.values()))
                size += 1
        return size


def report_of(run: Path) -> dict[str, dict[str, Any]]:
    return {row["file"]: row for row in json.loads((run / "fine_tune" / "report.json").read_text())}


def matrix(*sample: tuple[str, str]) -> list[Any]:
    """All protocols in both chat formats; every gate plays the sample, and the others belong to the full one."""
    pairs = [(protocol, chat_format) for protocol in PROTOCOLS for chat_format in ("openai", "alternating")]
    return [pytest.param(*pair, marks=() if pair in sample else pytest.mark.full) for pair in pairs]


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "chat_format"), matrix(("nip", "openai"), ("debate", "alternating")))
def test_every_turn_is_learnt_after_the_chat_that_was_sent(tmp_path: Path, protocol: str, chat_format: str) -> None:
    own = merge_changes(changes(protocol, chat_format), {"fine_tune": {"formats": FORMATS}})
    with run_chat_server(record=10_000) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, size=4, **own), tmp_path / "results").folder.path
        asked = ReceivedRequests(server.recorded_requests(), run)
    report, said = report_of(run), Counter(row["agent"] for row in table(run, "completions"))
    assert all((row["chat_format"], row["as_played"]) == (chat_format, True) for row in report.values())
    assert len(said) == len(PROTOCOLS[protocol][1]) - ("prover0" in said) + (protocol != "solo_verifier")
    for owner, turns_said in {**{f"agents/{name}": size for name, size in said.items()}, "m": said.total()}.items():
        for kind in ("sft.jsonl", "sft.trl.jsonl", "rl.parquet"):
            left_out = report[f"{owner}.{kind}"]["left_out"]
            assert set(left_out) <= {"duplicate line", "the agent said nothing"}
            # Each turn once; but for those of two games that are the same to the last byte.
            found = asked.check(run / "fine_tune" / f"{owner}.{kind}")
            assert found == turns_said or (found < turns_said and left_out["duplicate line"])


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "chat_format"), matrix(("mnip", "openai")))
def test_answers_are_preferred_after_the_chat_that_was_sent(tmp_path: Path, protocol: str, chat_format: str) -> None:
    own = changes(protocol, chat_format)
    if PROTOCOLS[protocol][0] is not None:
        own["protocol"]["max_message_rounds"] = 4
    own["rollouts"] = {"num_responses_per_timestep": 2}
    with run_chat_server(record=10_000) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, size=12, **own), tmp_path / "results").folder.path
        asked = ReceivedRequests(server.recorded_requests(), run)
    report = report_of(run)
    assert {name.rpartition("/")[2].split(".")[1] for name in report} == {"dpo"}
    for kind in ("dpo.jsonl", "dpo.trl.jsonl"):
        assert asked.check(run / "fine_tune" / f"m.{kind}") == report[f"m.{kind}"]["examples"] > 0


@pytest.mark.full
@pytest.mark.parametrize("chat_format", ["openai", pytest.param("alternating", marks=pytest.mark.full)])
def test_what_the_wire_changes_is_learnt_as_the_server_got_it(tmp_path: Path, chat_format: str) -> None:
    model = {"chat_format": chat_format, "send_name": False, "system_role": "developer"}
    with run_chat_server(record=10_000) as server:
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": model}, fine_tune={"formats": FORMATS})
        run = run_spec(path, tmp_path / "results").folder.path
        asked = ReceivedRequests(server.recorded_requests(), run)
    replaying = {"m": {"provider": "replay", "run": str(run)}}  # asks in the same way, and says nothing of it
    path = spec_file(tmp_path, size=2, models=replaying, fine_tune={"formats": FORMATS})
    for folder in (run, run_spec(path, tmp_path / "replayed").folder.path):
        for kind in ("sft.jsonl", "sft.trl.jsonl", "rl.parquet"):
            assert asked.check(folder / "fine_tune" / f"m.{kind}")


# How chats are divided into examples


def test_a_chat_that_goes_on_is_one_example_and_one_that_changes_is_several(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=4), tmp_path / "results").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    rollouts, agents = list(reconstructor.rollouts()), reconstructor.plan.agents()
    reconstructor.close()
    many = [rollout for rollout in rollouts if len(rollout.rounds) > 3]
    assert many
    for rollout in many:
        (whole,) = supervised_examples(agents["prover"], rollout)  # its instructions stay
        assert len(whole.learned) == sum("prover" in played_.raw for played_ in rollout.rounds) > 1
        apart = supervised_examples(agents["verifier"], rollout)  # its instructions count down
        assert [chat.round for chat in apart] == list(range(0, len(rollout.rounds), 2))
        assert all(chat.learned == [len(chat.messages) - 1] for chat in apart)
        assert all([*chat.rounds.values()] == [chat.round] for chat in apart)


@pytest.mark.full
def test_what_must_not_be_learnt_is_in_the_chats_of_later_turns_alone(tmp_path: Path) -> None:
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


def test_what_comes_after_the_last_turn_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = run_spec(spec_file(tmp_path, size=4), tmp_path / "results", "protocol.max_message_rounds=4").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    agents = reconstructor.plan.agents()
    long = next(rollout for rollout in reconstructor.rollouts() if len(rollout.rounds) == 3)
    reconstructor.close()
    rounds = [*long.rounds[:2], replace(long.rounds[2], messages=[Message("main", "verifier", "Thanks.")])]
    ways: list[tuple[ChatFormat, dict[str, str]]] = [
        ("openai", {"role": "user", "name": "Verifier", "content": "Thanks."}),
        ("alternating", {"role": "user", "content": "Verifier: Thanks."}),
    ]
    for chat_format, last in ways:
        prover = agents["prover"].with_chat_format(chat_format)
        (cut,) = supervised_examples(prover, replace(long, rounds=rounds))
        (whole,) = supervised_examples(prover, replace(long, rounds=rounds), ensure_last_message_is_assistant=False)
        assert whole.messages == [*cut.messages, last]
        assert whole.learned == cut.learned
