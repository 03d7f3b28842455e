"""The agent that the runner plays with, with the surface for those who come with arrays.

NumPy is imported where there are arrays: a run has none, and the import costs it more than a hundred rollouts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.agents.agent import Agent, AgentRuntime, Observation
from runner.aio import cancel_all, run_sync
from runner.documents.fields import from_plain, to_plain
from runner.models.base import Complete
from runner.models.settings import FineTuneStep
from runner.prompts.chat import ChatMessage
from runner.prompts.supervised import check_replacement
from runner.prompts.templates import FORBIDDEN
from runner.protocols.game import Reply
from runner.protocols.protocol import Decision, Protocol
from runner.spec.experiment import Experiment

if TYPE_CHECKING:
    import numpy as np

    from runner.agents.arrays import NestedArrayDict
    from runner.models.connect import Connection

__all__ = ["AgentRuntime", "Observation", "OpenAiWholeAgent"]

PROMPT_FIELDS = ("role", "name", "content")

HISTORIES = ("message_history", "message_agent_id", "raw_message_history")


class OpenAiWholeAgent(Agent):
    """One agent of a protocol, played by one model over the whole chat.

    The runner plays with it through `respond`; `forward` is the same on arrays of any batch shape.
    """

    agent_level_in_keys: tuple[str, ...] = ()
    agent_level_out_keys = ("message", "raw_message", "prompt", "decision", "retry_count", "token_limit")
    env_level_out_keys: tuple[str, ...] = ()
    required_pretrained_models: tuple[str, ...] = ()

    def __init__(
        self, hyper_params: Experiment, settings: AgentRuntime, agent_name: str, protocol_handler: Protocol
    ) -> None:
        super().__init__(hyper_params, settings, agent_name, protocol_handler)
        self._client: Complete | None = settings.complete

    # Identity

    @property
    def agent_id(self) -> int:
        return self.protocol_handler.agent_names.index(self.agent_name)

    @property
    def visible_message_channel_names(self) -> tuple[str, ...]:
        return self.protocol_handler.visible_channels(self.agent_name)

    @property
    def visible_message_channel_mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(channel), in the protocol's order."""
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
    def system_prompt_template(self) -> str:
        """The text of its Jinja2 template."""
        return self.settings.prompts.sources[self.agent_name]

    @property
    def env_level_in_keys(self) -> tuple[str, ...]:
        columns = sorted(self.settings.prompts.variables[self.agent_name] - set(self._variables({}, 1, 0)))
        return (
            "round", "seed", "message_history", "message_agent_id", "raw_message_history", "prover_stance", *columns,
        )  # fmt: skip

    @property
    def in_keys(self) -> tuple[str, ...]:
        return (*self.env_level_in_keys, *self.agent_level_in_keys)

    @property
    def out_keys(self) -> tuple[str, ...]:
        return (*self.env_level_out_keys, *self.agent_level_out_keys)

    @property
    def client(self) -> Complete:
        """How its model is asked: what it was given, or else a connection for the event loop that uses it first."""
        if self._client is None:
            self._client = self._connected().complete
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_client"] = None
        state["settings"] = replace(self.settings, complete=None)
        return state

    # Arrays

    def __call__(self, data: NestedArrayDict, environment: Any = None) -> NestedArrayDict:
        return self.forward(data, environment)

    def forward(self, data: NestedArrayDict, environment: Any = None) -> NestedArrayDict:  # noqa: ARG002 - the surface
        """Answer for a batch of games at once.

        In: `round`, `seed`, `prover_stance` and the datapoint's columns (...), `message_history` and
        `message_agent_id` (... round channel), `raw_message_history` (... round agent).
        Out: `message` (... channel), `raw_message` and `decision` (...), `prompt` (... message field) with the
        fields role, name and content, `retry_count` and `token_limit` (... channel). Where the agent does not
        speak the messages are None and the decision is 2. `environment` is not read.

        Raises:
            GenerationError, CallError, ProviderRefusal: the first that any game of the batch raised.
        """
        shape = data.batch_size
        flat = data.reshape(math.prod(shape))
        positions = [self._observation(flat, index) for index in range(flat.batch_size[0])]
        chats = [self.prompt(observation) if self._speaks_at(observation) else [] for observation in positions]
        replies = run_sync(lambda: self._respond_all(positions, chats))
        return self._out_arrays(positions, chats, replies).reshape(*shape)

    def _speaks_at(self, observation: Observation) -> bool:
        return self.agent_name in self.protocol_handler.speakers(observation.round, observation.seed)

    async def _respond_all(
        self, positions: Sequence[Observation], chats: Sequence[Sequence[ChatMessage]]
    ) -> list[Reply | None]:
        connection = self._connected()

        async def one(observation: Observation, chat: Sequence[ChatMessage]) -> Reply | None:
            return await self.respond(observation, connection.complete, chat) if chat else None

        tasks = [
            asyncio.create_task(one(observation, chat)) for observation, chat in zip(positions, chats, strict=True)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel_all(tasks)
            await connection.close()

    def _connected(self) -> Connection:
        """The connection that was given, or else one of this event loop's own."""
        from runner.models.connect import Connection, connect

        if self.settings.complete is not None:
            return Connection(self.settings.complete)
        group = {self.shared_model_group: self.model_settings}
        return connect(group, self.hyper_params.retry)

    def _observation(self, flat: NestedArrayDict, index: int, round_: int | None = None) -> Observation:
        from runner.agents.arrays import NestedArrayDict, rounds_from_arrays

        # Columns are whatever else the caller gives; a label among them never reaches a template.
        known = {"round", "seed", "prover_stance", "y", *HISTORIES}
        columns = {
            name: _scalar(flat[name][index])
            for name in flat
            if name not in known and name not in FORBIDDEN and not isinstance(flat[name], NestedArrayDict)
        }
        rounds = rounds_from_arrays(self.protocol_handler, *(flat[name][index] for name in HISTORIES))
        return Observation(
            round=int(flat["round"][index]) if round_ is None else round_,
            rounds=rounds,
            columns=columns,
            seed=int(flat["seed"][index]) if "seed" in flat else 0,
            prover_stance=int(flat["prover_stance"][index]) if "prover_stance" in flat else 1,
            datapoint=f"array-{index}",
        )

    def _out_arrays(
        self,
        positions: Sequence[Observation],
        chats: Sequence[Sequence[ChatMessage]],
        replies: Sequence[Reply | None],
    ) -> NestedArrayDict:
        import numpy as np

        from runner.agents.arrays import NestedArrayDict

        names = self.protocol_handler.channel_names
        size = len(positions)
        longest = max((len(chat) for chat in chats), default=0)
        message = np.full((size, len(names)), None, dtype=object)
        raw = np.full((size,), None, dtype=object)
        prompt = np.full((size, longest, len(PROMPT_FIELDS)), None, dtype=object)
        decision = np.full((size,), int(Decision.NONE), dtype=np.int64)
        retries = np.zeros((size, len(names)), dtype=np.int64)
        limits = np.zeros((size, len(names)), dtype=bool)
        for index, (observation, reply, chat) in enumerate(zip(positions, replies, chats, strict=True)):
            if reply is None:
                continue
            raw[index] = reply.raw
            decision[index] = reply.decision
            for channel in self.protocol_handler.can_be_active(observation.round)[self.agent_name]:
                column = names.index(channel)
                retries[index, column] = reply.retry_count
                limits[index, column] = reply.token_limit
                message[index, column] = (reply.messages or {}).get(channel)
            for row, chat_message in enumerate(chat):
                prompt[index, row] = [chat_message.get(name) for name in PROMPT_FIELDS]
        out = {
            "message": message, "raw_message": raw, "prompt": prompt, "decision": decision,
            "retry_count": retries, "token_limit": limits,
        }  # fmt: skip
        return NestedArrayDict(out, (size,))

    # Fine-tuning

    def build_fine_tune_dataset(
        self,
        timesteps: NestedArrayDict,
        ensure_last_message_is_assistant: bool = True,
        replace_verifier_guess_with_true_label: bool = False,
    ) -> list[dict[str, list[ChatMessage]]]:
        """Supervised examples from the last timestep of each game of a batch.

        `timesteps` holds what `forward` takes, and `y` (...) for the label. What is learnt are the histories after the
        step, under `next`; where there are none, those of `timesteps` itself are the final ones.
        Games in which the agent said nothing give no example when the last message must be its own. Labels
        replace a verifier's last message only.

        Raises:
            ValueError: the label is to replace the guess, and there is none, or the last message is not ensured.
        """
        check_replacement(
            ensure_last_message_is_assistant=ensure_last_message_is_assistant,
            replaces=replace_verifier_guess_with_true_label,
        )
        flat = timesteps.reshape(math.prod(timesteps.batch_size))
        if ("next", "message_history") in flat:
            flat.update({name: flat["next", name] for name in HISTORIES})
        examples = []
        for index in range(flat.batch_size[0]):
            label = _scalar(flat["y"][index]) if "y" in flat else None
            example = self.fine_tune_example(
                self._final_observation(flat, index),
                label,
                ensure_last_message_is_assistant=ensure_last_message_is_assistant,
                replace_verifier_guess_with_true_label=replace_verifier_guess_with_true_label and self.is_verifier,
            )
            if example is not None:
                examples.append({"messages": example})
        return examples

    def _final_observation(self, flat: NestedArrayDict, index: int) -> Observation:
        """A finished game's position: the round stays within the game's last."""
        from runner.agents.arrays import is_missing

        played = sum(any(not is_missing(text) for text in row) for row in flat["raw_message_history"][index])
        return self._observation(flat, index, round_=min(played, self.max_message_rounds - 1))

    # State

    def get_state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: the model's name, what it was fine-tuned from, and every step on the way."""
        return {
            "model_name": self.model_name,
            "base_model_name": self.base_model_name,
            "lineage": to_plain(self.model_settings.lineage),
        }

    def set_state(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on with the model of a checkpoint.

        Raises:
            KeyError: the checkpoint holds no model name.
        """
        self.model_settings = replace(
            self.model_settings,
            model=checkpoint["model_name"],
            base_model=checkpoint.get("base_model_name", self.base_model_name),
            lineage=tuple(from_plain(FineTuneStep, step) for step in checkpoint.get("lineage", ())),
        )
        self._client = self.settings.complete


def _scalar(value: Any) -> Any:
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value
