"""nip-run: a declarative experiment runner for games between language models.

    from runner import load_spec, run

    result = run(load_spec("specs/quickstart.yaml"), results="results")
    result.metrics["outcomes"]

Names are imported when they are first used, so that `import runner` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runner.version import __version__

if TYPE_CHECKING:
    from runner.agents import AgentRuntime, OpenAiWholeAgent
    from runner.agents.environment import Environment
    from runner.agents.nested import NestedArrayDict
    from runner.api import run
    from runner.protocols.load import load_protocol
    from runner.rollouts.plan import Plan
    from runner.runs.run import RunResult
    from runner.spec.load import Spec, load_spec, load_specs

_HOMES = {
    "AgentRuntime": "runner.agents",
    "Environment": "runner.agents.environment",
    "NestedArrayDict": "runner.agents.nested",
    "OpenAiWholeAgent": "runner.agents",
    "Plan": "runner.rollouts.plan",
    "RunResult": "runner.runs.run",
    "Spec": "runner.spec.load",
    "load_protocol": "runner.protocols.load",
    "load_spec": "runner.spec.load",
    "load_specs": "runner.spec.load",
    "run": "runner.api",
}

__all__ = [
    "AgentRuntime",
    "Environment",
    "NestedArrayDict",
    "OpenAiWholeAgent",
    "Plan",
    "RunResult",
    "Spec",
    "__version__",
    "load_protocol",
    "load_spec",
    "load_specs",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'runner' has no attribute {name!r}")
