"""The public functions of `runner` for specs, runs, and questions about several runs."""

from runner.api.judging import rejudge
from runner.api.queries import compare, query, sweep_table
from runner.api.runs import merge, open_run, run, run_sweep
from runner.api.specs import Check, check, duration, estimate, load_protocol, load_spec, load_specs, sample_size

__all__ = [
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
    "rejudge",
    "run",
    "run_sweep",
    "sample_size",
    "sweep_table",
]
