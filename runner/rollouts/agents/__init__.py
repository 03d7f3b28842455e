"""Agents: they turn an observation of a game into a reply by a prompt, a model and a parser; also for arrays."""

from runner.base.errors import (
    AgentNotActiveInChannelError,
    ContentFilterError,
    ContentIsNoneError,
    GenerationError,
    InvalidConfidenceError,
    InvalidDecisionError,
    InvalidResponseError,
    NotAllActiveChannelsInResponseError,
    ScratchpadError,
    StatementError,
    UnknownFinishReasonError,
    WordLimitError,
)
from runner.rollouts.agents.agent import AgentRuntime, Observation
from runner.rollouts.agents.whole_agent import OpenAiWholeAgent, ParsedChatCompletion, SharedModelGroup

__all__ = [
    "AgentNotActiveInChannelError",
    "AgentRuntime",
    "ContentFilterError",
    "ContentIsNoneError",
    "GenerationError",
    "InvalidConfidenceError",
    "InvalidDecisionError",
    "InvalidResponseError",
    "NotAllActiveChannelsInResponseError",
    "Observation",
    "OpenAiWholeAgent",
    "ParsedChatCompletion",
    "ScratchpadError",
    "SharedModelGroup",
    "StatementError",
    "UnknownFinishReasonError",
    "WordLimitError",
]
