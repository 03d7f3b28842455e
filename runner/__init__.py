"""nip-run: a declarative experiment runner for games between language models.

    from runner import load_spec, run

    result = run(load_spec("specs/quickstart.yaml"), results="results")
    result.accuracy

Only the names in `__all__` are public. Names are imported at their first use, so that `import runner` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.version import __version__

if TYPE_CHECKING:
    from runner.analysis.results import AnalysisTable
    from runner.api.analysis import analyze
    from runner.api.curation import passes_tests
    from runner.api.display import RunResult, Transcript
    from runner.api.plots import Plot
    from runner.api.queries import compare, query, sweep_table
    from runner.api.runs import merge, open_run, rejudge, run, run_sweep
    from runner.api.specs import Check, check, duration, estimate, load_protocol, load_spec, load_specs, sample_size
    from runner.base.errors import (
        BudgetExhausted,
        CallError,
        GenerationError,
        Interrupted,
        LeaderboardError,
        MergeError,
        NipRunError,
        ProviderRefusal,
        RunError,
        SpecError,
        UsageError,
        Waiting,
    )
    from runner.base.problems import Problem
    from runner.exports.export_file import ExportOptions, WrittenExport
    from runner.exports.run_source import RunSource
    from runner.models.connectors import ConnectionTarget
    from runner.models.interface import Choice, Completion, Provider, Request, Usage
    from runner.results.comparison.comparison import Comparison
    from runner.results.leaderboard.sweep_table import SweepRow, SweepValue
    from runner.results.metric_plugins import PluginMetric
    from runner.rollouts.agents.agent import AgentRuntime
    from runner.rollouts.agents.environment import Environment, first_turn
    from runner.rollouts.agents.nested_arrays import NestedArrayDict
    from runner.rollouts.agents.whole_agent import OpenAiWholeAgent
    from runner.rollouts.estimate import CostEstimate
    from runner.rollouts.plan import Plan
    from runner.rollouts.rollout import Rollout
    from runner.runs.execution.accounting import Progress
    from runner.runs.finished.result import Measured
    from runner.runs.planning.duration import Duration
    from runner.runs.planning.sample_size import Needed, SampleSize
    from runner.spec.loader import Spec
    from runner.training.backends.interface import Backend, FineTuneJob, JobState, JobStatus
    from runner.training.backends.registry import TrainedGroup

__all__ = [
    "AgentRuntime",
    "AnalysisTable",
    "Backend",
    "BudgetExhausted",
    "CallError",
    "Check",
    "Choice",
    "Comparison",
    "Completion",
    "ConnectionTarget",
    "CostEstimate",
    "Duration",
    "Environment",
    "ExportOptions",
    "FineTuneJob",
    "GenerationError",
    "Interrupted",
    "JobState",
    "JobStatus",
    "LeaderboardError",
    "Measured",
    "MergeError",
    "Needed",
    "NestedArrayDict",
    "NipRunError",
    "OpenAiWholeAgent",
    "Plan",
    "Plot",
    "PluginMetric",
    "Problem",
    "Progress",
    "Provider",
    "ProviderRefusal",
    "Request",
    "Rollout",
    "RunError",
    "RunResult",
    "RunSource",
    "SampleSize",
    "Spec",
    "SpecError",
    "SweepRow",
    "SweepValue",
    "TrainedGroup",
    "Transcript",
    "Usage",
    "UsageError",
    "Waiting",
    "WrittenExport",
    "__version__",
    "analyze",
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
    "passes_tests",
    "query",
    "rejudge",
    "run",
    "run_sweep",
    "sample_size",
    "sweep_table",
]

if not TYPE_CHECKING:  # type checkers would otherwise accept any name
    _HOMES = {
        "runner.analysis.results": ("AnalysisTable",),
        "runner.api.analysis": ("analyze",),
        "runner.api.curation": ("passes_tests",),
        "runner.base.problems": ("Problem",),
        "runner.rollouts.agents.agent": ("AgentRuntime",),
        "runner.rollouts.agents.environment": ("Environment", "first_turn"),
        "runner.rollouts.agents.nested_arrays": ("NestedArrayDict",),
        "runner.rollouts.agents.whole_agent": ("OpenAiWholeAgent",),
        "runner.api.queries": ("compare", "query", "sweep_table"),
        "runner.api.runs": ("merge", "open_run", "rejudge", "run", "run_sweep"),
        "runner.api.specs": (
            "Check",
            "check",
            "duration",
            "estimate",
            "load_protocol",
            "load_spec",
            "load_specs",
            "sample_size",
        ),
        "runner.results.comparison.comparison": ("Comparison",),
        "runner.api.plots": ("Plot",),
        "runner.api.display": ("RunResult", "Transcript"),
        "runner.results.leaderboard.sweep_table": ("SweepRow", "SweepValue"),
        "runner.rollouts.estimate": ("CostEstimate",),
        "runner.rollouts.plan": ("Plan",),
        "runner.runs.execution.accounting": ("Progress",),
        "runner.runs.finished.result": ("Measured",),
        "runner.runs.planning.sample_size": ("Needed", "SampleSize"),
        "runner.runs.planning.duration": ("Duration",),
        "runner.spec.loader": ("Spec",),
        "runner.exports.export_file": ("ExportOptions", "WrittenExport"),
        "runner.exports.run_source": ("RunSource",),
        "runner.models.connectors": ("ConnectionTarget",),
        "runner.models.interface": ("Choice", "Completion", "Provider", "Request", "Usage"),
        "runner.results.metric_plugins": ("PluginMetric",),
        "runner.rollouts.rollout": ("Rollout",),
        "runner.training.backends.interface": ("Backend", "FineTuneJob", "JobState", "JobStatus"),
        "runner.training.backends.registry": ("TrainedGroup",),
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module 'runner' has no attribute {name!r}")
        return getattr(import_module(_HOME_OF.get(name, "runner.base.errors")), name)

    def __dir__() -> list[str]:
        return __all__
