"""The keys of a protocol file: agents, channels, the order of speaking, and rewards.

`runner.game.protocols.protocol` interprets the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.documents.dataclass_schema import changed_keys, option, to_plain

LATER_KEYS = ("answers",)
"""Keys of a protocol file added after 0.2.0. Saved files and identities leave them out if they have their defaults."""

MAX_ROUNDS = 10_000
"""Maximum number of rounds. No model can play more, since a prompt contains all earlier rounds."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """An agent of the game."""

    role: Literal["prover", "verifier"] = option(
        "Whether the agent argues (`prover`) or decides (`verifier`).", example="prover"
    )
    human_name: str = option(
        "The agent's name in the conversation, which the other agents see.",
        example="Expert_1",
        pattern="^[A-Za-z0-9_-]{1,64}$",
    )
    stance: str = option(
        "The verdict that a prover argues for. It is rewarded for this verdict. `accept` or `reject`; with `answers: "
        "listed`, it is `correct` (a right answer), `incorrect` (a wrong answer, chosen by the game's seed), `open` "
        "(the prover chooses, and writes `Answer:` and a letter in its first message), or the letter of an answer.",
        default="accept",
        example="reject",
    )
    anonymous: bool = option("Other agents do not see who wrote the agent's messages.", default=False)
    last_round_message: bool = option(
        "In the last round, the agent gets an additional message, from the template `AGENT.last_round.jinja`.",
        default=False,
    )
    headers: Mapping[str, str] = option(
        "For an agent that speaks in several channels at once: for each channel, the text that starts its message in "
        "the answer.",
        factory=dict,
        example={"prover0_channel": "Question for Expert_1:"},
    )
    channel_order: tuple[str | tuple[str, ...], ...] | None = option(
        "The order of channels in the agent's prompt. With `randomize_channel_order`, the channels of an inner list "
        "are shuffled. Channels that are not listed follow in the order of the file.",
        default=None,
        example=[["prover0_channel", "prover1_channel"]],
    )


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel: where messages go."""

    members: tuple[str, ...] = option(
        "The agents that see the channel's messages.", example=["prover", "verifier"], minItems=1
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolStep:
    """One step of the cycle, played in one round: all its speakers speak at the same time."""

    speak: Mapping[str, tuple[str, ...]] = option(
        "The agents that speak, each with a list of channels. Empty: a round without messages.",
        example={"verifier": ["main"]},
    )
    draw: Literal["all", "one"] = option(
        "`all`: all these agents speak. `one`: only one of them speaks, chosen at random in each game.", default="all"
    )
    may_decide: bool = option("The verifier may give its verdict in this step instead of asking.", default=True)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters that a spec may set. Rewards are those of the paper (Neural Interactive Proofs, ICLR 2025)."""

    max_message_rounds: int = option("Maximum number of rounds of a game.", default=8, minimum=1, maximum=MAX_ROUNDS)
    min_message_rounds: int = option(
        "Ignore verdicts before round `min_message_rounds - 1` (the first round is 0).",
        default=1,
        minimum=1,
    )
    verifier_first: bool = option(
        "true: the cycle starts with the verifier's first step. false: with the first step of other agents. If the "
        "protocol file does not set this parameter, the cycle starts with its first step, and a spec cannot change "
        "this.",
        default=True,
    )
    sequential: bool = option("If several agents speak in a step, each gets a round of its own.", default=False)
    prover0_first: bool = option(
        "With `sequential`: agents speak in the order of the file; false: in the reverse order.", default=True
    )
    randomize_channel_order: bool = option(
        "Shuffle channels, as `channel_order` of an agent says, in each game.", default=False
    )
    randomize_prover_stance: bool = option(
        "The provers argue for a verdict that depends on the datapoint: the parity of the SHA-256 of its solution. "
        "With `answers: listed`, the game's seed decides whether `correct` and `incorrect` are exchanged.",
        default=False,
    )
    shuffle_answers: bool = option(
        "With `answers: listed`: each game shows the answers in an order that its seed determines. false: in the order "
        "of the dataset.",
        default=True,
    )
    prover_reward: float = option("A prover's reward if the verdict is the verdict that it argues for.", default=1.0)
    verifier_reward: float = option("The verifier's reward for a right verdict.", default=1.0)
    verifier_incorrect_penalty: float = option("The verifier's reward for a wrong verdict.", default=-1.0)
    verifier_terminated_penalty: float = option(
        "The verifier's reward if the last round ends without a verdict.", default=-1.0
    )
    verifier_no_guess_reward: float = option(
        "The verifier's reward for each question, if it could have decided instead.", default=0.0
    )
    shared_reward: bool = option("Give every prover the verifier's reward.", default=False)
    force_guess: Literal["zero", "one", "y"] | None = option(
        "Replace every verdict: `zero` by reject, `one` by accept, `y` by the label. null: count the verifier's own "
        "verdicts. With `answers: listed`, only `y` is possible: the first right answer.",
        default=None,
        example="zero",
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolFile:
    """A protocol: agents, channels, the cycle of steps, and the parameters a spec may change."""

    name: str = option("The protocol's name.", example="nip", pattern="^[a-z][a-z0-9_]*$")
    description: str = option("A sentence that describes the game.", default="")
    answers: Literal["accept_reject", "listed"] = option(
        "`accept_reject`: the verifier accepts or rejects. `listed`: it chooses from the answers of the datapoint (see "
        "the spec key `dataset.answers`).",
        default="accept_reject",
        example="listed",
    )
    agents: Mapping[str, AgentSpec] = option(
        "The agents, in the order of arrays and tables. Exactly one is a verifier.",
        example={"verifier": {"role": "verifier", "human_name": "Verifier"}},
        minProperties=1,
        propertyNames={"pattern": "^[a-z][a-z0-9_]*$"},
    )
    channels: Mapping[str, Channel] = option(
        "The channels, in the order of arrays and tables.",
        example={"main": {"members": ["prover", "verifier"]}},
        minProperties=1,
        propertyNames={"pattern": "^[a-z][a-z0-9_]*$"},
    )
    cycle: tuple[ProtocolStep, ...] = option(
        "The steps. Each step is played as one round. After the last step, the first follows again, until the last "
        "round of the game.",
        example=[{"speak": {"verifier": ["main"]}}, {"speak": {"prover": ["main"]}}],
        minItems=1,
    )
    parameters: Parameters = option(
        "The parameters' defaults in this protocol.", factory=Parameters, example={"max_message_rounds": 9}
    )
    fixed: tuple[str, ...] = option("Parameters that a spec cannot change.", default=(), example=["max_message_rounds"])


def file_content(file: ProtocolFile) -> dict[str, Any]:
    """Return a protocol file as data, without later keys that have their defaults."""
    data, changed = to_plain(file), changed_keys(file)
    data["parameters"] = parameter_content(file.parameters)
    return {name: value for name, value in data.items() if name not in LATER_KEYS or name in changed}


def parameter_content(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters that a game depends on, without later parameters that have their defaults."""
    data: dict[str, Any] = to_plain(parameters)
    if parameters.shuffle_answers:
        del data["shuffle_answers"]
    return data
