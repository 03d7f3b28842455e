"""Nested dictionaries of arrays with a shared batch shape, and games as such arrays."""

from __future__ import annotations

import numpy as np
import pytest

from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, Reply, play
from runner.rollouts.agents.arrays import NestedArrayDict, arrays_from_rounds, rounds_from_arrays, timesteps
from runner.spec.loader import load_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    return load_spec(spec_file(tmp_path_factory.mktemp("spec"))).protocol


def play_scripted_game(protocol: Protocol, decide_in: int | None) -> FinishedGame:
    """Play a scripted game; the verifier decides in the given round, or never."""
    playing = play(protocol, seed=1, label=1, prover_stance=1)
    turn = next(playing)
    try:
        while True:
            replies = {}
            for name, channels in turn.speakers.items():
                text = f"{name} in {turn.round}"
                decides = turn.round == decide_in
                messages = None if decides else dict.fromkeys(channels, text)
                replies[name] = Reply(text, messages, 1 if decides else 2, turn.round % 2, turn.round == 1)
            turn = playing.send(replies)
    except StopIteration as end:
        game: FinishedGame = end.value
        return game


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_every_leaf_starts_with_the_batch_shape(shape: tuple[int, ...]) -> None:
    data = NestedArrayDict({"a": np.zeros(shape), "b": {"c": np.zeros((*shape, 4))}}, shape)
    assert data.batch_size == shape
    assert data["b", "c"].shape == (*shape, 4)
    assert data["b"].batch_size == shape
    if shape:
        with pytest.raises(ValueError, match="does not start with batch_size"):
            data["d"] = np.zeros((9, *shape))


def test_batch_shape_is_inferred_if_none_is_given() -> None:
    assert NestedArrayDict({"a": np.zeros((2, 3)), "b": np.zeros((2, 3, 4))}).batch_size == (2, 3)


def test_index_selects_the_same_part_of_every_leaf() -> None:
    data = NestedArrayDict({"a": np.arange(6).reshape(2, 3), "b": {"c": np.arange(2)}}, (2,))
    assert data[1]["a"].tolist() == [3, 4, 5]
    assert data[1].batch_size == ()
    assert data[0:1].batch_size == (1,)
    assert data[0:1]["b", "c"].tolist() == [0]


def test_tuple_keys_set_and_get_nested_values() -> None:
    data = NestedArrayDict({}, (2,))
    data["agents", "decision"] = [0, 1]
    assert ("agents", "decision") in data
    assert "agents" in data
    assert ("agents", "nothing") not in data
    assert "nothing" not in data
    assert data["agents"]["decision"].tolist() == [0, 1]
    with pytest.raises(KeyError):
        data["nothing"]


def test_text_and_missing_values_are_unchanged() -> None:
    data = NestedArrayDict({"a": ["long text", None], "b": [["x"], ["yyyy"]]}, (2,))
    assert data["a"].dtype == object
    assert data["a"].tolist() == ["long text", None]
    assert data["b"][1, 0] == "yyyy"


def test_reshape_keeps_the_leaves_and_their_order() -> None:
    data = NestedArrayDict({"a": np.arange(12).reshape(2, 2, 3), "b": {"c": np.arange(4).reshape(2, 2)}}, (2, 2))
    flat = data.reshape(4)
    assert flat.batch_size == (4,)
    assert flat["a"].shape == (4, 3)
    assert flat.reshape(2, 2)["b", "c"].tolist() == [[0, 1], [2, 3]]
    scalar = NestedArrayDict({"a": 5}, ())
    assert scalar.reshape(1)["a"].tolist() == [5]
    assert scalar.reshape(1).reshape()["a"].item() == 5
    assert scalar.reshape(1).reshape().batch_size == ()


def test_update_keys_and_length() -> None:
    data = NestedArrayDict({"a": np.zeros(2)}, (2,)).update({"b": np.ones(2)})
    assert sorted(data.keys()) == sorted(data) == ["a", "b"]
    assert len(data) == 2
    assert {name for name, _ in data.items()} == {"a", "b"}
    assert "batch_size=(2,)" in repr(data)


@pytest.mark.parametrize("decide_in", [None, 2, 4])
def test_game_survives_conversion_to_arrays_and_back(protocol: Protocol, decide_in: int | None) -> None:
    game = play_scripted_game(protocol, decide_in)
    arrays = arrays_from_rounds(protocol, game.rounds)
    assert arrays["message_history"].shape == (protocol.max_message_rounds, 1)
    assert arrays["raw_message_history"].shape == (protocol.max_message_rounds, 2)
    rebuilt_rounds = rounds_from_arrays(
        protocol, arrays["message_history"], arrays["message_agent_id"], arrays["raw_message_history"]
    )
    for rebuilt, original in zip(rebuilt_rounds, game.rounds, strict=False):
        assert dict(rebuilt.raw) == dict(original.raw)
        assert list(rebuilt.messages) == list(original.messages)
    assert all(not round_.raw for round_ in rebuilt_rounds[len(game.rounds) :])


def test_message_without_a_sender_is_an_error(protocol: Protocol) -> None:
    arrays = arrays_from_rounds(protocol, play_scripted_game(protocol, 2).rounds)
    arrays["message_agent_id"][0, 0] = -1
    with pytest.raises(ValueError, match="no sender"):
        rounds_from_arrays(
            protocol, arrays["message_history"], arrays["message_agent_id"], arrays["raw_message_history"]
        )


@pytest.mark.parametrize("decide_in", [None, 2])
def test_rows_after_the_end_are_padding(protocol: Protocol, decide_in: int | None) -> None:
    game = play_scripted_game(protocol, decide_in)
    steps = timesteps(protocol, game.rounds)
    count, length = len(game.rounds), protocol.max_message_rounds
    assert steps.batch_size == (length,)
    assert steps["padding"].tolist() == [False] * count + [True] * (length - count)
    assert steps["round"].tolist() == [min(i, count) for i in range(length)]
    assert not steps["agents", "reward"][count:].any()
    assert not steps["agents", "decision"][count:].any()
    assert bool(steps["next", "done"][count - 1]) == (decide_in is not None)
    assert bool(steps["next", "terminated"][count - 1]) == (decide_in is None)
    retries = [row.max() for row in steps["agents", "retry_count"]]
    assert retries == [i % 2 if i < count else 0 for i in range(length)]
