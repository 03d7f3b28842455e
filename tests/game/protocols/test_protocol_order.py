"""The order of speakers and of channels."""

from __future__ import annotations

import pytest

from runner.game.prompts.chat import chat_messages
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.rounds import Message, Round
from tests.support.games import list_speakers, play_game
from tests.support.processes import python

# Turn order


def test_verifier_or_provers_begin() -> None:
    v, p = {"verifier"}, {"prover0", "prover1"}
    assert list_speakers(load_protocol("debate"), 4) == [v, p, v, p]
    assert list_speakers(load_protocol("debate", {"verifier_first": False}), 4) == [p, v, p, v]


def test_sequential_provers_take_turns_in_either_order() -> None:
    v, a, b = {"verifier"}, {"prover0"}, {"prover1"}
    assert list_speakers(load_protocol("debate", {"sequential": True}), 6) == [v, a, b, v, a, b]
    backwards = load_protocol("debate", {"sequential": True, "prover0_first": False, "verifier_first": False})
    assert list_speakers(backwards, 6) == [b, a, v, b, a, v]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 2**62, 2**63 - 1])
def test_parity_of_the_seed_chooses_merlin_or_arthur(seed: int) -> None:
    assert set(load_protocol("merlin_arthur").speakers(0, seed)) == {"prover1" if seed % 2 else "prover0"}
    assert set(load_protocol("merlin_arthur").speakers(1, seed)) == {"verifier"}


def test_verifier_cannot_tell_whether_merlin_or_arthur_spoke() -> None:
    protocol = load_protocol("merlin_arthur")
    for seed in (0, 1):
        game = play_game(
            protocol, lambda turn, name: "the case" if name != "verifier" else "Decision: accept", seed=seed
        )
        chat = chat_messages(protocol, "verifier", game.rounds[:1], round_=1, system="s", seed=seed)
        assert chat == [{"role": "system", "content": "s"}, {"role": "user", "content": "the case"}]


# Channel order


def channel_orders(seeds: range) -> list[tuple[str, ...]]:
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    return [protocol.channel_order("verifier", seed) for seed in seeds]


def test_channel_order_is_shuffled_by_the_seed() -> None:
    counts = {order: channel_orders(range(400)).count(order) for order in set(channel_orders(range(400)))}
    assert len(counts) == 2
    assert min(counts.values()) > 150


def test_unshuffled_channel_order_is_that_of_the_file() -> None:
    protocol = load_protocol("debate")
    assert {protocol.channel_order("verifier", seed) for seed in range(50)} == {("prover0_channel", "prover1_channel")}
    assert {protocol.channel_order("prover0", seed) for seed in range(50)} == {("prover1_channel", "prover0_channel")}


def test_shuffling_keeps_a_fixed_channel_order() -> None:
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    assert {protocol.channel_order("prover0", seed) for seed in range(50)} == {("prover1_channel", "prover0_channel")}


def test_shuffled_channels_change_the_order_of_the_chat() -> None:
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    round_ = Round(
        raw={"prover0": "zero", "prover1": "one"},
        messages=[Message("prover0_channel", "prover0", "zero"), Message("prover1_channel", "prover1", "one")],
    )
    orders = {
        tuple(m["content"] for m in chat_messages(protocol, "verifier", [round_], round_=1, system="s", seed=seed))
        for seed in range(30)
    }
    assert orders == {("s", "zero", "one"), ("s", "one", "zero")}


@pytest.mark.sample(1)
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_channel_order_is_the_same_in_every_process(hash_seed: str) -> None:
    code = "from tests.game.protocols.test_protocol_order import channel_orders; print(channel_orders(range(40)))"
    done = python(code, PYTHONHASHSEED=hash_seed)
    assert done.stdout.strip() == str(channel_orders(range(40)))
