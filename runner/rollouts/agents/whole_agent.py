"""The agent that the runner uses. It also has methods for users with arrays of games (docs/reference/agent.md).

NumPy is imported only in methods that need arrays. A run has no arrays, and the import takes longer than a hundred
rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from runner.documents.dataclass_schema import from_plain, to_plain
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.supervised import check_replacement
from runner.game.prompts.templates import PromptTemplate
from runner.models.settings import FineTuneStep
from runner.rollouts.agents.agent import AgentRuntime, Observation
from runner.rollouts.agents.direct import DirectAgent, ParsedChatCompletion

if TYPE_CHECKING:
    import numpy as np

    from runner.rollouts.agents.environment import Environment
    from runner.rollouts.agents.nested_arrays import NestedArrayDict

__all__ = ["AgentRuntime", "Observation", "OpenAiWholeAgent", "ParsedChatCompletion", "SharedModelGroup"]


class SharedModelGroup(str):
    """The name of a model group, with the names of the group's model and base model as attributes."""

    __slots__ = ("base_model_name", "model_name")
    model_name: str
    """The name of the model that answers, which may be fine-tuned."""
    base_model_name: str
    """The name of the base model of a fine-tuned model; else `model_name` itself."""

    def __new__(cls, name: str, model_name: str, base_model_name: str) -> Self:
        group = super().__new__(cls, name)
        group.model_name, group.base_model_name = model_name, base_model_name
        return group

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedModelGroup, (str(self), self.model_name, self.base_model_name)


class OpenAiWholeAgent(DirectAgent):
    """One agent of a protocol, played by one model over the whole chat.

    The runner calls `respond` for one turn. `forward` answers a batch of turns in arrays of any shape.
    """

    agent_level_in_keys: tuple[str, ...] = ()
    agent_level_out_keys = ("message", "raw_message", "prompt", "decision", "retry_count", "token_limit")
    env_level_out_keys: tuple[str, ...] = ()
    required_pretrained_models: tuple[str, ...] = ()

    # Identity

    @property
    def agent_id(self) -> int:
        return self.protocol_handler.agent_names.index(self.agent_name)

    @property
    def visible_message_channel_names(self) -> tuple[str, ...]:
        return self.protocol_handler.visible_channels(self.agent_name)

    @property
    def visible_message_channel_mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the agent sees each channel: (channel), in the protocol's order."""
        import numpy as np

        visible = self.visible_message_channel_names
        return np.array([name in visible for name in self.protocol_handler.channel_names], dtype=bool)

    @property
    def visible_message_channel_indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        import numpy as np

        return np.flatnonzero(self.visible_message_channel_mask).astype(np.int64)

    @property
    def num_visible_message_channels(self) -> int:
        return len(self.visible_message_channel_names)

    @property
    def shared_model_group(self) -> SharedModelGroup:
        """The agent's model group with its current model."""
        return SharedModelGroup(self.model_group, self.model_name, self.base_model_name)

    @property
    def system_prompt_template(self) -> PromptTemplate:
        """The agent's Jinja2 template: a string with its source, which also has the method `render(**variables)`."""
        return self.settings.prompts.template(self.agent_name)

    @property
    def env_level_in_keys(self) -> tuple[str, ...]:
        columns = sorted(self.settings.prompts.variables[self.agent_name] - set(self._variables(1, 0)))
        return (
            "round", "seed", "message_history", "message_agent_id", "raw_message_history", "prover_stance", *columns,
        )  # fmt: skip

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (*self.env_level_in_keys, *self.agent_level_in_keys)

    @property
    def out_keys(self) -> tuple[str, ...]:
        return (*self.env_level_out_keys, *self.agent_level_out_keys)

    # Arrays

    def __call__(self, data: NestedArrayDict, environment: Environment | None = None) -> NestedArrayDict:
        return self.forward(data, environment)

    def forward(self, data: NestedArrayDict, environment: Environment | None = None) -> NestedArrayDict:
        """Answer the current turns of a batch of games, and return the answers as arrays.

        In: `round`, `seed`, `prover_stance` and the datapoint's columns (...), `message_history` and
        `message_agent_id` (... round channel), `raw_message_history` (... round agent). Entries of the histories for
        `round` and later rounds are ignored.
        Out: `message` (... channel), `raw_message` and `decision` (...), `prompt` (... message field) with the
        fields role, name and content, `retry_count` and `token_limit` (... channel), the same in every channel. If the
        agent does not speak, or if the game is over (`padding` (...) is true), each message is None and the decision
        is 2. With an `environment`, prompts are padded to `environment.max_prompt_messages`; without one, to
        the longest prompt.

        Raises:
            TypeError: `environment` is not an `Environment`.
            ValueError: a game has no such round.
            GenerationError, CallError, ProviderRefusal: the first error that a game of the batch raised.
        """
        from runner.base.async_runner import run_sync
        from runner.rollouts.agents.environment import prompt_width
        from runner.rollouts.agents.observations import actions, turn_of

        width = prompt_width(environment)
        shape = data.batch_size
        flat = data.reshape(math.prod(shape))
        turns = [turn_of(self.protocol_handler, flat, index) for index in range(flat.batch_size[0])]
        chats = [self.prompt(turn) if turn is not None and self._speaks_at(turn) else [] for turn in turns]
        replies = run_sync(lambda: self._respond_all(turns, chats)) if any(chats) else [None] * len(chats)
        return actions(self.protocol_handler, chats, replies, width).reshape(*shape)

    # Fine-tuning

    def build_fine_tune_dataset(
        self,
        timesteps: NestedArrayDict,
        ensure_last_message_is_assistant: bool = True,
        replace_verifier_guess_with_true_label: bool = False,
    ) -> list[dict[str, list[ChatMessage]]]:
        """Return a supervised example for each step of a batch: the chat up to the end of that step.

        `timesteps` has `round` (...), the histories after the step under `next`, the label `y` (...), and otherwise the
        same keys as for `forward`. Any step of a game is accepted; a padding step stands for the end of the game.
        Without histories under `next`, the histories at the top level must be those of finished games. A step has no
        example if the last message must be the agent's own and the agent has sent none yet. Labels replace only the
        last message of a verifier.

        Raises:
            ValueError: a game has no such round. Or the label must replace the guess, but there is no label or
                `ensure_last_message_is_assistant` is false.
        """
        from runner.rollouts.agents.observations import example_of, scalar

        check_replacement(
            ensure_last_message_is_assistant=ensure_last_message_is_assistant,
            replaces=replace_verifier_guess_with_true_label,
        )
        flat = timesteps.reshape(math.prod(timesteps.batch_size))
        examples = []
        for index in range(flat.batch_size[0]):
            example = self.fine_tune_example(
                example_of(self.protocol_handler, flat, index),
                scalar(flat["y"][index]) if "y" in flat else None,
                ensure_last_message_is_assistant=ensure_last_message_is_assistant,
                replace_verifier_guess_with_true_label=replace_verifier_guess_with_true_label and self.is_verifier,
            )
            if example is not None:
                examples.append({"messages": example})
        return examples

    # State

    def get_state_dict(self) -> dict[str, Any]:
        """Return the agent's model as a checkpoint: its name, its base model's name, and every fine-tuning step."""
        return {
            "model_name": self.model_name,
            "base_model_name": self.base_model_name,
            "lineage": to_plain(self.model_settings.lineage),
        }

    def set_state(self, checkpoint: Mapping[str, Any]) -> None:
        """Switch to the model of a checkpoint.

        Raises:
            KeyError: the checkpoint has no model name.
        """
        self.model_settings = replace(
            self.model_settings,
            model=checkpoint["model_name"],
            base_model=checkpoint.get("base_model_name", self.base_model_name),
            lineage=tuple(from_plain(FineTuneStep, step) for step in checkpoint.get("lineage", ())),
        )
