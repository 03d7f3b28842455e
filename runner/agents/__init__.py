"""An observation into a reply: prompt, model and parser, one agent at a time or on arrays."""

from runner.agents.agent import AgentRuntime, Observation
from runner.agents.whole_agent import OpenAiWholeAgent

__all__ = ["AgentRuntime", "Observation", "OpenAiWholeAgent"]
