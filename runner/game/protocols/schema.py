"""The keys of a protocol file: agents, channels, the order of speaking, and rewards.

`runner.game.protocols.protocol` interprets the keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.documents.dataclass_schema import LARGEST_NUMBER, changed_keys, option, to_plain

LATER_KEYS = ("answers", "private", "quotes", "panel")
LATER_AGENT_KEYS = ("word_limit", "scratchpad")
LATER_STEP_KEYS = ("best_of", "states", "pick_claim", "must_decide")
LATER_PARAMETERS = ("shuffle_answers", "max_depth", "max_claims")
"""Keys of a protocol file, its agents, steps and parameters added after 0.1.0. With their defaults, they are left out.
"""

MAX_ROUNDS = 10_000
"""Maximum number of rounds. No model can play more, since a prompt contains all earlier rounds."""

_NAME: Mapping[str, Any] = {
    "pattern": "^[a-z][a-z0-9_]*$",
    "patternErrorMessage": "lower-case letters, digits and '_', beginning with a letter",
}
"""The form of the names of protocols, agents and channels."""

_REWARD_LIMITS: Mapping[str, Any] = {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
"""Limits of rewards. The squares of larger numbers, which intervals need, would overflow."""

FORBIDDEN = ("label", "y")
"""Names of columns that no agent may see, since they have the answer that the verifier must find."""


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
        patternErrorMessage="1 to 64 letters, digits, '_' and '-', without spaces",
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
    word_limit: Literal["stated", "ask", "truncate"] = option(
        "What nip-run does if the messages of an answer have more words than the spec's "
        "`agents.AGENT.max_response_words`. `stated`: nothing, because only the prompt states the limit. `ask`: ask "
        "again, as after an answer in a wrong format; if the last answer is also too long, truncate it. `truncate`: "
        "remove the words over the limit.",
        default="stated",
    )
    scratchpad: str | None = option(
        "The text that ends the agent's private notes in each answer. Only what follows its last occurrence is the "
        "agent's message or verdict. No other agent sees the notes, and neither does the agent in later rounds. null: "
        "the agent has no private notes.",
        default=None,
        example="Statement:",
        minLength=1,
    )


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel: where messages go."""

    members: tuple[str, ...] = option(
        "The agents that see the channel's messages.", example=["prover", "verifier"], minItems=1
    )


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """Several candidates for an agent's answer, of which a selector chooses one. Other agents see only this one."""

    n: int = option("The number of candidates.", example=4, minimum=2, maximum=128)
    by: Literal["preference", "critic", "judge", "function"] = option(
        "The selector. `preference`: a model compares the candidates, with the template `AGENT.preference.jinja`, and "
        "ends with `Best: NUMBER`. `critic`: a model writes a critique of each candidate, with the template "
        "`AGENT.critic.jinja`, and ends with `Score: NUMBER` from 0 to 10. `judge`: the verifier's model gives a "
        "verdict after each candidate, with the template `VERIFIER.judge.jinja`; the candidate with the highest "
        "probability of the agent's stance, by log-probabilities, is selected. `function`: the Python function "
        "`select(candidates, game)` in `AGENT.function.py` of the prompts folder returns the index of the best.",
        example="preference",
    )

    @property
    def compares_all(self) -> bool:
        """Whether one answer compares all candidates; otherwise, each candidate gets a score."""
        return self.by in ("preference", "function")

    @property
    def answers(self) -> int:
        """The number of answers of the selector."""
        return 1 if self.compares_all else self.n


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
    must_decide: bool = option(
        "The verifier must give its verdict in this step. An answer without a verdict is requested again, as after an "
        "answer in a wrong format.",
        default=False,
    )
    best_of: BestOf | None = option(
        "Request several candidates for the answer of each speaker, and select one. null: request one answer.",
        default=None,
        example={"n": 4, "by": "preference"},
    )
    states: Literal["answer", "claims", "estimates"] | None = option(
        "What the message of the step's only speaker must state. `answer`: after `Answer:`, the answer that is judged "
        "from then on, and that the spec key `dataset.checker` labels. `claims`: from 2 to `max_claims` sub-claims, in "
        "lines that start with `Claim 1:`, `Claim 2:` and so on. `estimates`: for each of these sub-claims, the "
        "probability that it is right, as in `Claim 1: 80%`. An answer without them is requested again. null: the "
        "message may have any form.",
        default=None,
        example="answer",
    )
    pick_claim: bool = option(
        "After this step, the game's seed picks one of the sub-claims, each with the same probability, and the game "
        "continues with it. The steps from the first with `states: claims` to the last with `pick_claim` are played "
        "`max_depth` times in a row.",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class Quotes:
    """Quotes that nip-run checks: text between `<quote>` and `</quote>` in messages.

    Other agents see `<verified_quote>` or `<unverified_quote>` instead.
    """

    source: str = option("The column of the dataset with the text that agents quote.", example="passage")
    max_words_per_message: int | None = option(
        "The number of words that one agent may quote in a message. A quote that exceeds it is not verified, so that "
        "others see it as unverified. null: no limit.",
        default=None,
        example=60,
        minimum=1,
    )
    max_words_per_game: int | None = option(
        "The same limit for all messages of an agent in a game.", default=None, example=200, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class Panel:
    """How several verifiers (judges) decide together."""

    rule: Literal["majority", "mean", "unanimous", "sequential"] = option(
        "How the judges' verdicts give the decision. `majority`: the verdict of most judges. `mean`: by the mean of "
        "the judges' probabilities of accept, which `verdict.confidence` of the spec records. `unanimous`: the verdict "
        "that every judge gives. `sequential`: the judges of a step speak one after another, and the last verdict "
        "decides. A tie, and a panel without a verdict that counts, gives no decision.",
        example="majority",
    )


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters that a spec may set. Rewards are those of the paper (Neural Interactive Proofs, ICLR 2025)."""

    max_message_rounds: int = option("Maximum number of rounds of a game.", default=8, minimum=1, maximum=MAX_ROUNDS)
    min_message_rounds: int = option(
        "Ignore verdicts before round `min_message_rounds - 1` (the first round is 0).", default=1, minimum=1
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
    max_depth: int = option(
        "With `pick_claim`: how many times the game splits a claim, and continues with one of its sub-claims.",
        default=1,
        minimum=1,
        maximum=100,
    )
    max_claims: int = option(
        "With `states: claims`: the maximum number of sub-claims of a claim.", default=4, minimum=2, maximum=100
    )
    prover_reward: float = option(
        "A prover's reward if the verdict is the verdict that it argues for.", default=1.0, **_REWARD_LIMITS
    )
    verifier_reward: float = option("The verifier's reward for a right verdict.", default=1.0, **_REWARD_LIMITS)
    verifier_incorrect_penalty: float = option(
        "The verifier's reward for a wrong verdict.", default=-1.0, **_REWARD_LIMITS
    )
    verifier_terminated_penalty: float = option(
        "The verifier's reward if the last round ends without a verdict.", default=-1.0, **_REWARD_LIMITS
    )
    verifier_no_guess_reward: float = option(
        "The verifier's reward for each question, if it could have decided instead.", default=0.0, **_REWARD_LIMITS
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

    name: str = option("The protocol's name.", example="nip", **_NAME)
    description: str = option("A sentence that describes the game.", default="")
    answers: Literal["accept_reject", "listed"] = option(
        "`accept_reject`: the verifier accepts or rejects. `listed`: it chooses from the answers of the datapoint (see "
        "the spec key `dataset.answers`).",
        default="accept_reject",
        example="listed",
    )
    agents: Mapping[str, AgentSpec] = option(
        "The agents, in the order of arrays and tables. Exactly one is a verifier, unless the file has a `panel`.",
        example={"verifier": {"role": "verifier", "human_name": "Verifier"}},
        minProperties=1,
        propertyNames=_NAME,
    )
    channels: Mapping[str, Channel] = option(
        "The channels, in the order of arrays and tables.",
        example={"main": {"members": ["prover", "verifier"]}},
        minProperties=1,
        propertyNames=_NAME,
    )
    cycle: tuple[ProtocolStep, ...] = option(
        "The steps. Each step is played as one round. After the last step, the first follows again, until the last "
        "round of the game.",
        example=[{"speak": {"verifier": ["main"]}}, {"speak": {"prover": ["main"]}}],
        minItems=1,
    )
    panel: Panel | None = option(
        "Several verifiers decide together, as the judges of a panel. Each gives one verdict, is then not asked again, "
        "and is rewarded for its own verdict. Its answer is a message in the channels of its step, or in those whose "
        "headers it has. The game ends when every judge has decided, or after the last round.",
        default=None,
        example={"rule": "majority"},
    )
    parameters: Parameters = option(
        "The parameters' defaults in this protocol.", factory=Parameters, example={"max_message_rounds": 9}
    )
    private: Mapping[str, tuple[str, ...]] = option(
        "Columns of the dataset that only some agents may see, each with these agents. nip-run refuses templates of "
        "other agents that use such a column.",
        factory=dict,
        example={"passage": ["prover0", "prover1"]},
    )
    quotes: Quotes | None = option(
        "Check the quotes in messages against a column of the dataset; null: do not look for quotes.",
        default=None,
        example={"source": "passage"},
    )
    fixed: tuple[str, ...] = option("Parameters that a spec cannot change.", default=(), example=["max_message_rounds"])


def file_content(file: ProtocolFile) -> dict[str, Any]:
    """Return a protocol file as data, without later keys that have their defaults."""
    return {
        **_without_defaults(file, LATER_KEYS),
        "agents": {name: _without_defaults(agent, LATER_AGENT_KEYS) for name, agent in file.agents.items()},
        "cycle": [_without_defaults(step, LATER_STEP_KEYS) for step in file.cycle],
        "parameters": parameter_content(file.parameters),
    }


def _without_defaults(section: ProtocolFile | AgentSpec | ProtocolStep, names: Collection[str]) -> dict[str, object]:
    """Return a section as data without those of the given keys that have their defaults."""
    data, changed = to_plain(section), changed_keys(section)
    return {name: value for name, value in data.items() if name not in names or name in changed}


def parameter_content(parameters: Parameters) -> dict[str, object]:
    """Return the parameters that a game depends on, without later parameters that have their defaults."""
    data, changed = to_plain(parameters), changed_keys(parameters)
    return {name: value for name, value in data.items() if name not in LATER_PARAMETERS or name in changed}
