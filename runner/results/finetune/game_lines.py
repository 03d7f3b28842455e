"""A finished game into the lines of its fine-tune files: all that needs no file.

Whoever writes them does so in the order of the plan; they may be made anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from runner.base.errors import UsageError
from runner.base.hashing import derived_seed
from runner.base.text import comma_join, did_you_mean
from runner.results.finetune.example_file import LATER, ExampleLine, line_of, traced
from runner.results.finetune.examples import Example, ExampleSource, Learnt, RlTurn
from runner.results.finetune.formats import FORMATS, Format
from runner.results.finetune.rollout_examples import rl_turns, source_of, supervised
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Rollout
from runner.spec.experiment import FineTune

OF_ROLLOUTS: Mapping[str, Format] = {f.name: f for f in FORMATS.values() if f.method in ("sft", "rl")}
"""What a finished game gives each consumer, by the consumer's name."""


def format_of(name: str, *, trees: bool) -> Format:
    """What a consumer is given of games, or of trees of responses."""
    return FORMATS.get((name, "dpo"), OF_ROLLOUTS[name]) if trees else OF_ROLLOUTS[name]


def chosen_agents(agents: Mapping[str, Agent], names: Sequence[str] | None) -> dict[str, Agent]:
    """The agents of these names; all where there are none.

    Raises:
        UsageError: one is not there.
    """
    unknown = [name for name in names or () if name not in agents]
    if unknown:
        hint = did_you_mean(unknown[0], agents)
        raise UsageError(f"no agent {comma_join(map(repr, unknown))}{hint}; there are {comma_join(agents)}")
    return {name: agent for name, agent in agents.items() if names is None or name in names}


def in_validation(group: str, share: float) -> bool:
    """Whether the examples of a group of datapoints go to the validation file: the same in every run and process."""
    return share > 0 and derived_seed("validation", group) < share * 2**63


class MadeExample(NamedTuple):
    """One agent's example in one format, for its own file and for its group's; or why there is none."""

    agent: str
    suffix: str
    """The format's."""
    line: ExampleLine | str
    trace: bytes
    in_validation: bool


def made_example(agent: str, format_: Format, example: Example, source: ExampleSource, share: float) -> MadeExample:
    """An example as its line; `share` is that of the validation file."""
    is_validation = in_validation(source.group or source.datapoint_id, share)
    if isinstance(example, RlTurn):
        example = replace(example, index=LATER, split="validation" if is_validation else "train")
    return MadeExample(agent, format_.suffix, line_of(format_, example), traced(source), is_validation)


class Examples:
    """What games give the files of a run. `agents` are those who play a game, by whether its seats are swapped."""

    def __init__(
        self,
        settings: FineTune,
        formats: Sequence[Format],
        agents: Mapping[bool, Mapping[str, Agent]],
        run_id: str,
    ) -> None:
        self._settings, self._run_id = settings, run_id
        self._formats = [format_ for format_ in formats if format_.method != "dpo"]
        self._methods = {format_.method for format_ in formats}
        chosen = chosen_agents(agents[False], settings.agents)
        self.agents: dict[bool, dict[str, Agent]] = {
            is_swapped: {
                name: agent.with_chat_format(settings.chat_format) for name, agent in cast.items() if name in chosen
            }
            for is_swapped, cast in agents.items()
        }

    def of(self, rollout: Rollout) -> list[MadeExample]:
        """Each agent's examples of one game, in the order of the files."""
        reason, group = self._unusable(rollout), rollout.job.datapoint.group
        share = self._settings.validation_share
        made: list[MadeExample] = []
        for name, agent in self.agents[bool(rollout.job.swapped)].items():
            found = {} if reason else self._found(agent, rollout)
            for format_ in self._formats:
                if not found.get(format_.method):
                    why = reason or "the agent said nothing"
                    made.append(MadeExample(name, format_.suffix, why, b"", in_validation(group, share)))
                for example in format_.examples(found.get(format_.method, ())):
                    source = source_of(agent, rollout, self._run_id, example.round)
                    made.append(made_example(name, format_, example, source, share))
        return made

    def _found(self, agent: Agent, rollout: Rollout) -> dict[str, Sequence[Learnt]]:
        """What one agent's part of a game gives each method that some format asks for."""
        settings = self._settings
        found: dict[str, Sequence[Learnt]] = {}
        if "rl" in self._methods:
            found["rl"] = list(rl_turns(agent, rollout, self._run_id))
        if "sft" in self._methods:
            found["sft"] = supervised(
                agent,
                rollout,
                ensure_last_message_is_assistant=settings.ensure_last_message_is_assistant,
                replace_verifier_guess_with_true_label=settings.replace_verifier_guess_with_true_label,
            )
        return found

    def _unusable(self, rollout: Rollout) -> str | None:
        if not rollout.outcome.played_out:
            return f"outcome {rollout.outcome}"
        if self._settings.only_correct and not rollout.correct:
            return "wrong verdict"
        return None


def examples_of(
    settings: FineTune,
    agents: Mapping[str, Agent],
    run_id: str,
    *,
    trees: bool = False,
    swapped: Mapping[str, Agent] | None = None,
) -> Examples:
    """What the games of a run give its files. `swapped` are the agents in games in which seats are exchanged.

    Raises:
        UsageError: an agent that the settings name is not there.
    """
    formats = [format_of(name, trees=trees) for name in settings.formats]
    return Examples(settings, formats, {False: agents, True: swapped or {}}, run_id)
