"""The public functions for specs: load, check, estimate cost, plan size. They call no model and write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import ensure_loaded, open_results
from runner.base.errors import SpecError, UsageError
from runner.base.problems import Place, Problem
from runner.base.text import dollar_range
from runner.documents.plain_values import KeyPath, to_plain_values
from runner.game.protocols import loader as protocols
from runner.game.protocols.protocol import Protocol
from runner.registry.components.lookup import make_finder_for
from runner.rollouts.estimate import CostEstimate, estimate_costs, sum_by_group
from runner.rollouts.plan import Plan
from runner.runs.planning.sample_size import SampleSize, sample_size_of
from runner.spec import loader as specs
from runner.spec.loader import Overrides, Spec, SpecSource
from runner.spec.warnings.catalog import check_warnings_of
from runner.training.key_usage import key_uses_of
from runner.training.plan import plan_of

if TYPE_CHECKING:
    from runner.runs.planning.duration import Duration


@dataclass(frozen=True, repr=False)
class Check:
    """The size and cost of a valid spec. `repr(check)` is a text for readers."""

    spec: Spec
    run_id: str
    """The id of the run that the spec starts or resumes."""
    rollouts: int
    """The number of games, including all iterations and tests; for a spec with trees, the number of trees."""
    datapoints: int
    models: tuple[CostEstimate, ...]
    """Calls, tokens and cost of each model group, as ranges from the smallest to the largest possible value."""
    keys: tuple[str, ...]
    """The API keys that a run sends, each with its host: `OPENAI_API_KEY -> api.openai.com`."""
    warnings: tuple[str, ...]
    """Warnings about settings that are valid, but perhaps unintended."""

    @property
    def calls(self) -> tuple[int, int]:
        """The smallest and the largest possible number of calls to all model groups."""
        return sum(model.calls[0] for model in self.models), sum(model.calls[1] for model in self.models)

    @property
    def cost_usd(self) -> tuple[float, float] | None:
        """The smallest and the largest possible cost of all model groups; None if a price is unknown."""
        costs = [model.cost_usd for model in self.models if model.cost_usd is not None]
        return None if len(costs) < len(self.models) else (sum(low for low, _ in costs), sum(high for _, high in costs))

    def __repr__(self) -> str:
        calls = "{:,} to {:,} calls, cost ".format(*self.calls) + dollar_range(self.cost_usd)
        kind = "rollouts" if self.spec.experiment.rollouts.num_responses_per_timestep is None else "trees"
        summary = f"run {self.run_id}: {self.rollouts} {kind} on {self.datapoints} datapoints, {calls}"
        return "\n".join(
            [summary, *(f"sends {key}" for key in self.keys), *(f"warning: {line}" for line in self.warnings)]
        )


def load_spec(source: SpecSource, overrides: Overrides = (), results: str | Path | None = None) -> Spec:
    """Load a spec without a sweep.

    `source` is the path of a file, the name of a built-in spec, or a mapping with the content of such a file. Paths in
    a mapping are relative to the current folder. `overrides` are one or more texts as on the command line
    (`KEY=VALUE`, `+KEY=VALUE`, `~KEY`), or a mapping from dotted keys to values, which are not parsed. Values may be
    NumPy scalars, paths and tuples. `results`, as in `run`, is the folder with the runs that the spec takes models
    from. If the spec names releases, `nip-run install` must have installed the versions in `nip-run.lock`.

        >>> from runner import load_spec
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "agents.prover.max_response_words": 50})
        >>> len(spec.dataset.datapoints)
        2
        >>> load_spec({"extends": "quickstart.yaml", "name": "mine"}, ["dataset.limit=2"]).experiment.name
        'mine'

    Raises:
        SpecError: the spec is invalid, or has a sweep (use `load_specs`); `problems` lists all mistakes in all files.
    """
    return specs.load_spec(source, overrides, open_results(results).path_of, make_finder_for(source))


def load_specs(source: SpecSource, overrides: Overrides = (), results: str | Path | None = None) -> list[Spec]:
    """Load a spec for each point of its sweep. The arguments are as in `load_spec`.

    The points are in the order of the sweep, whose first key varies slowest. If `source` is the folder of a run, load
    the spec that is saved there.

        >>> from runner import load_specs
        >>> points = load_specs("specs/quickstart.yaml", {"dataset.limit": 2, "sweep": {"seed": [0, 1]}})
        >>> [spec.point for spec in points]
        [{'seed': 0}, {'seed': 1}]

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes in all files and points.
    """
    return specs.load_specs(source, overrides, open_results(results).path_of, make_finder_for(source))


def check(spec: Spec | SpecSource) -> Check:
    """Return the size and cost of a spec, without calling a model or writing. For overrides, pass `load_spec(...)`.

        >>> from runner import SpecError, check
        >>> check("specs/quickstart.yaml").calls
        (96, 672)
        >>> try:
        ...     check({"extends": "specs/quickstart.yaml", "protocol": {"use": "debat"}})
        ... except SpecError as error:
        ...     print(error.problems[0].message)
        no built-in protocol or file 'debat'; did you mean 'debate'?

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes.
    """
    loaded_spec = ensure_loaded(spec)
    plan = plan_of(loaded_spec)
    return Check(
        spec=loaded_spec,
        run_id=plan.run_id,
        rollouts=sum(games.size for games in plan.list_game_plans()),
        datapoints=len(loaded_spec.dataset.datapoints),
        models=tuple(estimate(loaded_spec)),
        keys=tuple(map(str, key_uses_of(plan))),
        warnings=(*map(str, loaded_spec.renamed), *check_warnings_of(loaded_spec)),
    )


def estimate(spec: Spec | SpecSource) -> list[CostEstimate]:
    """Estimate the calls, tokens and cost of a whole run for each model group.

    Each value is a range: all games are as short, or as long, as possible. Retries and fine-tuning are not included.
    Tokens are approximate: four bytes of a prompt count as one token, and an answer has at least as many tokens as its
    word limit, at most as many as its model's limit.

        >>> from runner import estimate
        >>> [(row.group, row.model, row.calls, row.cost_usd) for row in estimate("specs/quickstart.yaml")]
        [('offline', 'dummy', (96, 672), (0.0, 0.0))]

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes.
    """
    return sum_by_group(row for plan in plan_of(ensure_loaded(spec)).list_game_plans() for row in estimate_costs(plan))


def sample_size(
    spec: Spec | SpecSource,
    detect: float,
    *,
    from_runs: Sequence[str | Path] = (),
    against: str | Path | None = None,
    results: str | Path | None = None,
) -> SampleSize:
    """Return the datapoints and repeats that detect a difference of `detect` (0.05: five points), and their cost.

    The power is 80 % at a level of 5 %. The variance comes from earlier runs: `from_runs` is one run of a similar
    system, or two runs similar to the two systems that you will compare; `against` is a run that you will compare with,
    and that is not played again. Without either, the largest possible variance is used. `results` is as in `run`.

        >>> from runner import load_spec, run, sample_size
        >>> size = sample_size("specs/quickstart.yaml", 0.2)
        >>> size.rows[0].groups, size.rows[0].datapoints, size.rows[0].calls, size.cheapest
        (109, 218, (218, 1526), None)
        >>> result = run(load_spec("specs/quickstart.yaml", {"name": "varied", "rollouts.per_datapoint": 2}))
        >>> size = sample_size("specs/quickstart.yaml", 0.2, from_runs=["varied"])
        >>> [row.repeats for row in size.rows]
        [1, 2, 3, 5, 10]

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes.
        UsageError: an argument is out of bounds, or a run does not exist, is not finished, or has other datapoints.
        RunError: the files of a run are damaged.
    """
    plan = _benchmark_plan(spec)
    baseline = None if against is None else str(against)
    return sample_size_of(plan, detect, open_results(results), from_runs=[*map(str, from_runs)], against=baseline)


def _benchmark_plan(spec: Spec | SpecSource) -> Plan:
    plan = plan_of(ensure_loaded(spec))
    if not isinstance(plan, Plan):
        kind = plan.spec.experiment.kind
        raise UsageError(
            f"the spec is a {kind}, but only benchmarks can be planned; set kind to benchmark and {kind} to null"
        )
    return plan


def duration(
    spec: Spec | SpecSource,
    *,
    workers: int = 1,
    shards: int = 1,
    cores: int | None = None,
    like: str | Path | None = None,
    measure: float = 2.0,
    results: str | Path | None = None,
) -> Duration:
    """Estimate the duration of a run with a number of workers or shards, and what limits the duration.

    To measure this machine, the function plays some games of the spec with the provider `dummy` in the results folder,
    and discards them; each measurement takes `measure` seconds. The properties of games and servers come from an
    earlier run: `like`, or the newest comparable run. `cores` is the number of cores of all machines together, by
    default of this machine. `results` is as in `run`.

        >>> from runner import duration
        >>> forecast = duration("specs/quickstart.yaml", measure=0.02)
        >>> forecast.games, forecast.bounds[0].name, forecast.servers_known
        (96, 'core', True)

    Raises:
        SpecError: the spec is invalid; `problems` lists all mistakes.
        UsageError: an argument is out of bounds or does not apply to the run, or `like` is not a comparable run.
        RunError: no measurement is possible in the results folder, or the files of a run are damaged.
    """
    from runner.runs.planning.duration import ForecastOptions, duration_of  # loads everything needed to play

    plan = _benchmark_plan(spec)
    options = ForecastOptions(workers, shards, cores, None if like is None else str(like), measure)
    return duration_of(plan, open_results(results), options)


def load_protocol(name: str, parameters: Mapping[str, object] | None = None, *, folder: str | Path = ".") -> Protocol:
    """Load a protocol with parameters. `name` is the name of a built-in protocol, or a path relative to `folder`.

        >>> from runner import load_protocol
        >>> debate = load_protocol("debate", {"max_message_rounds": 4})
        >>> debate.agent_names, debate.max_message_rounds
        (('prover0', 'prover1', 'verifier'), 4)

    Raises:
        SpecError: the file or the parameters are invalid; `problems` lists all mistakes.
    """
    rejected: list[tuple[KeyPath, str]] = []
    values = to_plain_values({"protocol": dict(parameters or {})}, rejected)["protocol"]
    if rejected:
        raise SpecError([Problem(Place("protocol"), ".".join(map(str, path)), message) for path, message in rejected])
    protocol = protocols.load_protocol(name, values, folder=Path(folder))
    problems = list(protocols.unplayable_parameters(protocol, lambda _: Place("protocol")))
    if problems:
        raise SpecError(problems)
    return protocol
