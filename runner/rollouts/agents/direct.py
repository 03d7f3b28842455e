"""An agent that is called directly, outside a run, with one game or one chat at a time.

The names of the methods and arguments are those of the original code (see docs/reference/agent.md). All methods call
the model in the same way as the runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.base.errors import AgentNotActiveInChannelError, UsageError
from runner.base.hashing import derived_seed, tagged_hash
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.supervised import check_replacement
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Reply
from runner.models.interface import Choice, Request, ResponseHint, SampleKey
from runner.rollouts.agents.agent import Agent, AgentRuntime, Observation
from runner.rollouts.agents.arguments import check_binary
from runner.spec.experiment import Experiment

if TYPE_CHECKING:
    from runner.models.client import Connection


@value_class(frozen=True, slots=True)
class ParsedChatCompletion:
    """A parsed answer, with its prompt and its raw text."""

    raw_message: str
    """The full text."""
    next_messages: Mapping[str, str] | None
    """The message in each channel; None if the answer is a decision."""
    decision: int
    """0 reject, 1 accept, 2 none."""
    retry_count: int
    """The number of unusable answers to the prompt. If all allowed attempts were unusable, the messages are empty."""
    token_limit: bool
    prompt: Sequence[ChatMessage]


class DirectAgent(Agent):
    """An agent with its own client, called from synchronous code such as a notebook."""

    def __init__(
        self, hyper_params: Experiment, settings: AgentRuntime, agent_name: str, protocol_handler: Protocol
    ) -> None:
        super().__init__(hyper_params, settings, agent_name, protocol_handler)
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The official synchronous client for the model group's server. It is created on first use, and does not retry.

        The client is bound to no event loop. The runner does not use it; see `_make_generation_api_call`.

        Raises:
            UsageError: the group's provider has no synchronous client.
            ProviderRefusal: the environment variable of the API key is empty.
        """
        from runner.models.connectors import sync_client

        if self._client is None:
            self._client = sync_client(self.model_settings, self.model_group)
        return self._client

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_client": None, "settings": replace(self.settings, complete=None)}

    # Calls of the model

    def _speaks_at(self, observation: Observation) -> bool:
        return self.agent_name in self.protocol_handler.speakers(observation.round, observation.seed)

    async def _respond_all(
        self, turns: Sequence[Observation | None], chats: Sequence[Sequence[ChatMessage]]
    ) -> list[Reply | None]:
        import asyncio

        from runner.base.async_runner import cancel_all

        connection = self._connect()

        async def respond_to(turn: Observation | None, chat: Sequence[ChatMessage]) -> Reply | None:
            return await self.respond(turn, connection.complete, chat) if turn is not None and chat else None

        tasks = [asyncio.create_task(respond_to(turn, chat)) for turn, chat in zip(turns, chats, strict=True)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel_all(tasks)
            await connection.close()

    def _connect(self) -> Connection:
        """Return a connection with the agent's function `complete` or, without one, a new one for this event loop."""
        from runner.models.client import Connection, ModelConnector

        if self.settings.complete is not None:
            return Connection(self.settings.complete)
        if self.model_settings.traits.needs_run:
            raise UsageError(
                f"models.{self.model_group} replays a run, so it has answers only for that run's rollouts; set "
                f"models.{self.model_group}.provider to another provider to call the agent directly"
            )
        return ModelConnector({self.model_group: self.model_settings}, self.hyper_params.retry).connect()

    # One game, or one chat

    def _build_chat_messages_prompt(  # noqa: PLR0917 - the documented arguments
        self,
        message_history: Any,
        message_agent_id: Any,
        raw_message_history: Any,
        round_id: int,
        question: Any = None,
        solution: Any = None,
        prover_stance: int = 1,
        seed: int = 0,
        y: int | None = None,
        ensure_last_message_is_assistant: bool = False,
        replace_last_message_with_true_label: bool = False,
        **columns: Any,
    ) -> list[ChatMessage]:
        """Return the chat of a round: the messages of all earlier rounds. For the last round, return all messages.

        With `ensure_last_message_is_assistant`, return the training example of the round, which also has the messages
        of this round up to the agent's own last one.

        Raises:
            AgentNotActiveInChannelError: the example would be empty.
            ValueError: the game has no such round. Or the label must replace the last message, but there is no label,
                `ensure_last_message_is_assistant` is false, or the agent is a prover.
        """
        check_replacement(
            ensure_last_message_is_assistant=ensure_last_message_is_assistant,
            replaces=replace_last_message_with_true_label,
        )
        turn = self._turn(
            (message_history, message_agent_id, raw_message_history),
            round_id, seed, prover_stance, {"question": question, "solution": solution, **columns},
        )  # fmt: skip
        last = self.max_message_rounds - 1
        if not ensure_last_message_is_assistant:
            rounds = turn.rounds[: turn.round] if turn.round < last else turn.rounds[: last + 1]
            return self.prompt(replace(turn, rounds=rounds))
        example = self.fine_tune_example(
            replace(turn, rounds=turn.rounds[: turn.round + 1], round=min(turn.round + 1, last)),
            y,
            replace_verifier_guess_with_true_label=replace_last_message_with_true_label,
        )
        if example is None:
            raise AgentNotActiveInChannelError(
                f"{self.agent_name} has sent no message up to round {turn.round}; pass a later round_id"
            )
        return example

    def _generate_next_message_and_decision(  # noqa: PLR0917 - the documented arguments
        self,
        message_history: Any,
        message_agent_id: Any,
        raw_message_history: Any,
        round_id: int,
        question: Any = None,
        solution: Any = None,
        seed: int = 0,
        prover_stance: int = 1,
        **columns: Any,
    ) -> ParsedChatCompletion:
        """Play the agent's turn in a round, and return the parsed answer; see `respond`.

        Raises:
            AgentNotActiveInChannelError: the agent does not speak in this round.
            ValueError: the game has no such round.
            GenerationError, CallError, ProviderRefusal: see `respond`.
        """
        from runner.base.async_runner import run_sync

        turn = self._turn(
            (message_history, message_agent_id, raw_message_history),
            round_id, seed, prover_stance, {"question": question, "solution": solution, **columns},
        )  # fmt: skip
        turn = replace(turn, rounds=turn.rounds[: turn.round])
        if not self._speaks_at(turn):
            raise AgentNotActiveInChannelError(
                f"{self.agent_name} does not speak in round {turn.round} with seed {seed}; pass another round or seed"
            )
        chat = self.prompt(turn)
        (reply,) = run_sync(lambda: self._respond_all([turn], [chat]))
        assert reply is not None
        return ParsedChatCompletion(
            reply.raw, reply.messages, reply.decision, reply.retry_count, reply.token_limit, chat
        )

    def _turn(
        self, histories: tuple[Any, Any, Any], round_: int, seed: int, prover_stance: int, columns: Mapping[str, object]
    ) -> Observation:
        """Return the observation of a round, from a game's histories and columns. Columns that are None are omitted."""
        from runner.rollouts.agents.arrays import rounds_from_arrays
        from runner.rollouts.agents.observations import check_round, scalar

        check_binary(self.protocol_handler)
        check_round(self.protocol_handler, int(round_))
        present_columns = {name: scalar(value) for name, value in columns.items() if value is not None}
        rounds = rounds_from_arrays(self.protocol_handler, *histories)
        return Observation(int(round_), rounds, present_columns, int(seed), int(prover_stance), "array-0")

    def _make_generation_api_call(self, chat_messages_prompt: Sequence[ChatMessage]) -> tuple[str | None, str | None]:
        """Call the model once, as the runner does, and return the text (or None) and the finish reason.

        Raises:
            CallError, ProviderRefusal: the model did not answer within the spec's `retry.transient`.
        """
        from runner.base.async_runner import run_sync

        choice = run_sync(lambda: self._first_choice(self._request(chat_messages_prompt)))
        return choice.text, choice.finish_reason

    async def _first_choice(self, request: Request) -> Choice:
        connection = self._connect()
        try:
            completion = await connection.complete(request)
        finally:
            await connection.close()
        return completion.choices[0] if completion.choices else Choice(None, None)

    def _generate_dummy_response(self, chat_messages_prompt: Sequence[ChatMessage]) -> str:
        """Return the answer of the provider `dummy` to a chat. It has the agent's answer format, and never varies."""
        from runner.base.async_runner import run_sync
        from runner.models.connectors import offline_answer

        (choice,) = run_sync(lambda: offline_answer(self._request(chat_messages_prompt))).choices
        assert choice.text is not None
        return choice.text

    def _request(self, chat: Sequence[ChatMessage]) -> Request:
        """Return a request for an answer to a chat that does not belong to a game."""
        check_binary(self.protocol_handler)
        format_ = self.hyper_params.decision_format
        accept, reject = (format_.accept, format_.reject) if self.is_verifier else (None, None)
        marker = format_.confidence if self.states_confidence else None
        hint = ResponseHint(tuple(self.agent_spec.headers.values()), accept, reject, confidence=marker)
        seed = derived_seed("chat", tagged_hash("chat", list(chat)))
        return Request(self.model_group, chat, SampleKey("chat", 0, 0, self.agent_name, 0), seed, hint)
