"""Build the lines of fine-tuning files from a finished game, without writing them.

Any process may build lines. One process writes them, in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from runner.base.errors import UsageError
from runner.base.hashing import derived_seed
from runner.base.text import comma_join, did_you_mean
from runner.results.finetune.example_file import UNKNOWN_INDEX, ExampleLine, encode_example, trace_line
from runner.results.finetune.examples import Example, ExampleSource, RlTurn, RolloutExample
from runner.results.finetune.formats import FORMATS, Format
from runner.results.finetune.rollout_examples import example_source, rl_turns, supervised_examples
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Rollout
from runner.spec.experiment import FineTune

ROLLOUT_FORMATS: Mapping[str, Format] = {f.name: f for f in FORMATS.values() if f.method in ("sft", "rl")}
"""The formats of examples from finished games, by the name of the training tool."""


def find_format(name: str, *, trees: bool) -> Format:
    """Return the format of a training tool; with `trees`, the one for preference pairs if the tool has one."""
    return FORMATS.get((name, "dpo"), ROLLOUT_FORMATS[name]) if trees else ROLLOUT_FORMATS[name]


def select_agents(agents: Mapping[str, Agent], names: Sequence[str] | None) -> dict[str, Agent]:
    """Return the agents of these names, or all agents if `names` is None.

    Raises:
        UsageError: an agent does not exist.
    """
    unknown = [name for name in names or () if name not in agents]
    if unknown:
        hint = did_you_mean(unknown[0], agents) or f"; choose from {comma_join(agents)}"
        raise UsageError(f"no agent {comma_join(map(repr, unknown))}{hint}")
    return {name: agent for name, agent in agents.items() if names is None or name in names}


def is_in_validation(group: str, share: float) -> bool:
    """Return whether a group's examples belong to the validation file. The result is the same in every run."""
    return share > 0 and derived_seed("validation", group) < share * 2**63


class AgentExample(NamedTuple):
    """An encoded example of one agent in one format, or the reason why it could not be encoded."""

    agent: str
    suffix: str
    """The suffix of the format's files."""
    line: ExampleLine | str
    trace: bytes
    """The line of the file that says which game each example comes from."""
    is_in_validation: bool


def build_example(agent: str, format_: Format, example: Example, source: ExampleSource, share: float) -> AgentExample:
    """Encode an example. `share` is the share of the groups of datapoints whose examples are for validation."""
    is_validation = is_in_validation(source.group or source.datapoint_id, share)
    if isinstance(example, RlTurn):
        example = replace(example, index=UNKNOWN_INDEX, split="validation" if is_validation else "train")
    return AgentExample(agent, format_.suffix, encode_example(format_, example), trace_line(source), is_validation)


class ExampleBuilder:
    """Builds the examples of a run's games, except preference pairs.

    `agents` are the players of the games, and `swapped_agents` those of games with swapped seats. With `trees`, a
    format for preference pairs is used if the training tool has one.

    Raises:
        UsageError: the settings name an agent that does not exist.
    """

    def __init__(
        self,
        settings: FineTune,
        agents: Mapping[str, Agent],
        run_id: str,
        *,
        trees: bool = False,
        swapped_agents: Mapping[str, Agent] | None = None,
    ) -> None:
        self._settings, self._run_id = settings, run_id
        self.formats = [find_format(name, trees=trees) for name in settings.formats]
        self._methods = {format_.method for format_ in self.formats}
        chosen = select_agents(agents, settings.agents)
        self.agents: dict[bool, dict[str, Agent]] = {
            is_swapped: {
                name: agent.with_chat_format(settings.chat_format) for name, agent in players.items() if name in chosen
            }
            for is_swapped, players in ((False, agents), (True, swapped_agents or {}))
        }
        """The agents with files, by name: the players of games without (False) and with swapped seats (True)."""

    def of(self, rollout: Rollout) -> list[AgentExample]:
        """Return the examples of all agents in one game, in the order of the files."""
        reason, group = self._exclusion_reason(rollout), rollout.job.datapoint.group
        share = self._settings.validation_share
        lines: list[AgentExample] = []
        for name, agent in self.agents[bool(rollout.job.swapped)].items():
            examples_by_method = {} if reason else self._examples_by_method(agent, rollout)
            for format_ in self.formats:
                examples = examples_by_method.get(format_.method, ())
                if not examples and format_.method != "dpo":
                    problem = reason or "the agent said nothing"
                    lines.append(AgentExample(name, format_.suffix, problem, b"", is_in_validation(group, share)))
                for example in format_.examples(examples):
                    source = example_source(agent, rollout, self._run_id, example.round)
                    lines.append(build_example(name, format_, example, source, share))
        return lines

    def _examples_by_method(self, agent: Agent, rollout: Rollout) -> dict[str, Sequence[RolloutExample]]:
        """Return the examples of one agent's part of a game, for each method that a format needs."""
        settings = self._settings
        examples_by_method: dict[str, Sequence[RolloutExample]] = {}
        if "rl" in self._methods:
            examples_by_method["rl"] = list(rl_turns(agent, rollout, self._run_id))
        if "sft" in self._methods:
            examples_by_method["sft"] = supervised_examples(
                agent,
                rollout,
                ensure_last_message_is_assistant=settings.ensure_last_message_is_assistant,
                replace_verifier_guess_with_true_label=settings.replace_verifier_guess_with_true_label,
            )
        return examples_by_method

    def _exclusion_reason(self, rollout: Rollout) -> str | None:
        if not rollout.outcome.played_out:
            return f"outcome {rollout.outcome}"
        if self._settings.only_correct and not rollout.correct:
            return "wrong verdict"
        return None
