"""The keys of a protocol file: agents, channels, the order of speaking, and rewards.

`runner.game.protocols.protocol` interprets the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option

MAX_ROUNDS = 10_000
"""Maximum number of rounds. No model can play more, since a prompt contains all earlier rounds."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """An agent of the game."""

    role: Literal["prover", "verifier"] = option("The agent's role in the game.", example="prover")
    human_name: str = option(
        "The name that other agents see: the `name` of its messages in their prompts.",
        example="Expert_1",
        pattern="^[A-Za-z0-9_-]{1,64}$",
    )
    stance: Literal["accept", "reject"] = option("The verdict a prover argues for, and is paid for.", default="accept")
    anonymous: bool = option(
        "The agent's messages have no `name`, so other agents do not know who wrote them.", default=False
    )
    last_round_message: bool = option(
        "In the last round, the agent gets another system message, from `<agent>.last_round.jinja`.", default=False
    )
    headers: Mapping[str, str] = option(
        "For an agent that speaks in several channels at once: the text that starts each channel's part.",
        factory=dict,
        example={"prover0_channel": "Question for Expert_1:"},
    )
    channel_order: tuple[str | tuple[str, ...], ...] | None = option(
        "The order of a round's channels in the agent's prompt. An inner list is a set: "
        "`randomize_channel_order` shuffles it. Channels that are left out follow in the order of the file.",
        default=None,
        example=[["prover0_channel", "prover1_channel"]],
    )


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel: where messages go."""

    members: tuple[str, ...] = option(
        "The agents that see the channel's messages; no other agent does.", example=["prover", "verifier"], minItems=1
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolStep:
    """One step of the cycle, played in one round: all its speakers speak at the same time."""

    speak: Mapping[str, tuple[str, ...]] = option(
        "Each speaker, with a list of channels. Empty: a silent round.",
        example={"verifier": ["main"]},
    )
    draw: Literal["all", "one"] = option(
        "`one`: only one of several speakers speaks, chosen by the rollout's seed (Merlin-Arthur).", default="all"
    )
    may_decide: bool = option("A verifier that speaks in this step may decide instead of asking.", default=True)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters that a spec may set. Rewards are those of the paper (Neural Interactive Proofs, ICLR 2025)."""

    max_message_rounds: int = option("The game ends after this many rounds.", default=8, minimum=1, maximum=MAX_ROUNDS)
    min_message_rounds: int = option(
        "A decision counts from round `min_message_rounds - 1` on (rounds count from 0); an earlier one is ignored.",
        default=1,
        minimum=1,
    )
    verifier_first: bool = option(
        "Start the cycle at the first step where the verifier speaks; false: at the first where it does not. "
        "If a protocol file does not set it, the cycle starts as written, and a spec cannot rotate it.",
        default=True,
    )
    sequential: bool = option("Split a step of several speakers into one round for each.", default=False)
    prover0_first: bool = option("With `sequential`, speakers go in the file's order; false: in reverse.", default=True)
    randomize_channel_order: bool = option(
        "Shuffle the channels in a set of `channel_order` by the rollout's seed.", default=False
    )
    randomize_prover_stance: bool = option(
        "Provers argue a stance that each datapoint sets: the parity of the SHA-256 of its solution.", default=False
    )
    prover_reward: float = option("A prover's reward when the verdict is its stance.", default=1.0)
    verifier_reward: float = option("The verifier's reward for a right verdict.", default=1.0)
    verifier_incorrect_penalty: float = option("The verifier's reward for a wrong verdict.", default=-1.0)
    verifier_terminated_penalty: float = option(
        "The verifier's reward when the last round ends without a verdict.", default=-1.0
    )
    verifier_no_guess_reward: float = option(
        "The verifier's reward for each round where it may decide but continues.", default=0.0
    )
    shared_reward: bool = option("Every prover gets the verifier's reward.", default=False)
    force_guess: Literal["zero", "one", "y"] | None = option(
        "The verifier's decision is always reject, always accept, or always the label.", default=None, example="zero"
    )


@dataclass(frozen=True, kw_only=True)
class ProtocolFile:
    """A protocol: agents, channels, the cycle of steps, and the parameters a spec may change."""

    name: str = option("The protocol's name.", example="nip", pattern="^[a-z][a-z0-9_]*$")
    description: str = option("One sentence on the game.", default="")
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
        "The steps, one per round, repeated from the first until the last round.",
        example=[{"speak": {"verifier": ["main"]}}, {"speak": {"prover": ["main"]}}],
        minItems=1,
    )
    parameters: Parameters = option(
        "The parameters' defaults in this protocol.", factory=Parameters, example={"max_message_rounds": 9}
    )
    fixed: tuple[str, ...] = option(
        "Parameters that a spec cannot change here.", default=(), example=["max_message_rounds"]
    )
