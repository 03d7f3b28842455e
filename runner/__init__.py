"""nip-run: a declarative experiment runner for games between language models.

    from runner import load_spec, run

    result = run(load_spec("specs/quickstart.yaml"), results="results")
    result.accuracy

What is public is in `__all__`, and nothing else. Names are imported when they are first used, so that `import runner`
costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.version import __version__

if TYPE_CHECKING:
    from runner.agents.agent import AgentRuntime
    from runner.agents.environment import Environment, first_turn
    from runner.agents.nested import NestedArrayDict
    from runner.agents.whole_agent import OpenAiWholeAgent
    from runner.api import (
        Check,
        check,
        compare,
        duration,
        estimate,
        load_protocol,
        load_spec,
        load_specs,
        merge,
        open_run,
        query,
        run,
        run_sweep,
        sample_size,
        sweep_table,
    )
    from runner.api.judging import rejudge
    from runner.api.plots import Plot
    from runner.api.shown import RunResult, Transcript
    from runner.comparison.compare import Comparison
    from runner.errors import (
        BudgetExhausted,
        CallError,
        GenerationError,
        Interrupted,
        LeaderboardError,
        MergeError,
        NipRunError,
        Problem,
        ProviderRefusal,
        RunError,
        SpecError,
        UsageError,
        Waiting,
    )
    from runner.results.sweep_table import SweepRow, SweepValue
    from runner.rollouts.estimate import CostEstimate
    from runner.rollouts.plan import Plan
    from runner.runs.accounting import Progress
    from runner.runs.result import Measured
    from runner.runs.sample_size import Needed, SampleSize
    from runner.runs.scale.duration import Duration
    from runner.spec.load import Spec

__all__ = [
    "AgentRuntime",
    "BudgetExhausted",
    "CallError",
    "Check",
    "Comparison",
    "CostEstimate",
    "Duration",
    "Environment",
    "GenerationError",
    "Interrupted",
    "LeaderboardError",
    "Measured",
    "MergeError",
    "Needed",
    "NestedArrayDict",
    "NipRunError",
    "OpenAiWholeAgent",
    "Plan",
    "Plot",
    "Problem",
    "Progress",
    "ProviderRefusal",
    "RunError",
    "RunResult",
    "SampleSize",
    "Spec",
    "SpecError",
    "SweepRow",
    "SweepValue",
    "Transcript",
    "UsageError",
    "Waiting",
    "__version__",
    "check",
    "compare",
    "duration",
    "estimate",
    "first_turn",
    "load_protocol",
    "load_spec",
    "load_specs",
    "merge",
    "open_run",
    "query",
    "rejudge",
    "run",
    "run_sweep",
    "sample_size",
    "sweep_table",
]

if not TYPE_CHECKING:  # a type checker that saw this would take every name for one of ours
    _HOMES = {
        "runner.agents.agent": ("AgentRuntime",),
        "runner.agents.environment": ("Environment", "first_turn"),
        "runner.agents.nested": ("NestedArrayDict",),
        "runner.agents.whole_agent": ("OpenAiWholeAgent",),
        "runner.api": (
            "Check",
            "check",
            "compare",
            "duration",
            "estimate",
            "load_protocol",
            "load_spec",
            "load_specs",
            "merge",
            "open_run",
            "query",
            "run",
            "run_sweep",
            "sample_size",
            "sweep_table",
        ),
        "runner.comparison.compare": ("Comparison",),
        "runner.api.judging": ("rejudge",),
        "runner.api.plots": ("Plot",),
        "runner.api.shown": ("RunResult", "Transcript"),
        "runner.results.sweep_table": ("SweepRow", "SweepValue"),
        "runner.rollouts.estimate": ("CostEstimate",),
        "runner.rollouts.plan": ("Plan",),
        "runner.runs.accounting": ("Progress",),
        "runner.runs.result": ("Measured",),
        "runner.runs.sample_size": ("Needed", "SampleSize"),
        "runner.runs.scale.duration": ("Duration",),
        "runner.spec.load": ("Spec",),
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module 'runner' has no attribute {name!r}")
        return getattr(import_module(_HOME_OF.get(name, "runner.errors")), name)

    def __dir__() -> list[str]:
        return __all__
