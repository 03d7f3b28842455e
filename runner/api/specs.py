"""The public functions of specs: load, check, estimate and plan their size. They call no model and write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.api.arguments import loaded, results_at
from runner.base.errors import Place, Problem, SpecError, UsageError
from runner.base.text import dollar_range
from runner.documents.plain_values import KeyPath, plain
from runner.game.protocols import loader as protocols
from runner.game.protocols.protocol import Protocol
from runner.registry.components.lookup import finder_of
from runner.rollouts.estimate import CostEstimate, estimate_costs, sum_by_group
from runner.runs.planning.sample_size import SampleSize, sample_size_of
from runner.spec import loader as specs
from runner.spec.loader import Overrides, Spec, SpecSource
from runner.spec.warnings.catalog import check_warnings_of
from runner.training.key_usage import key_uses_of
from runner.training.plan import TrainingPlan, plan_of

if TYPE_CHECKING:
    from runner.runs.planning.duration import Duration


@dataclass(frozen=True, repr=False)
class Check:
    """What a spec without errors would play, and what that would cost. Printed, it is a text to read."""

    spec: Spec
    run_id: str
    """The id of the run that it makes, or goes on with."""
    rollouts: int
    """How many games, those of all iterations and tests included; of a spec that plays trees, how many trees."""
    datapoints: int
    models: tuple[CostEstimate, ...]
    """Calls, tokens and cost by model group, each from the least to the most."""
    keys: tuple[str, ...]
    """The variables that a run sends, and where: `OPENAI_API_KEY -> api.openai.com`."""
    warnings: tuple[str, ...]
    """What is allowed, and may not be what was meant."""

    @property
    def calls(self) -> tuple[int, int]:
        """Of all model groups, from the least to the most."""
        return sum(one.calls[0] for one in self.models), sum(one.calls[1] for one in self.models)

    @property
    def cost_usd(self) -> tuple[float, float] | None:
        """Of all model groups, from the least to the most; None where a price is unknown."""
        costs = [one.cost_usd for one in self.models if one.cost_usd is not None]
        return None if len(costs) < len(self.models) else (sum(low for low, _ in costs), sum(high for _, high in costs))

    def __repr__(self) -> str:
        calls = "{:,} to {:,} calls, cost ".format(*self.calls) + dollar_range(self.cost_usd)
        kind = "rollouts" if self.spec.experiment.rollouts.num_responses_per_timestep is None else "trees"
        first = f"run {self.run_id}: {self.rollouts} {kind} on {self.datapoints} datapoints, {calls}"
        return "\n".join(
            [first, *(f"sends {key}" for key in self.keys), *(f"warning: {line}" for line in self.warnings)]
        )


def load_spec(source: SpecSource, overrides: Overrides = (), results: str | Path | None = None) -> Spec:
    """Load a spec without a sweep: a file, given here or built in, or a mapping that says what such a file says.

    Paths in a mapping are relative to the current folder. `overrides` are lines as on the command line (`KEY=VALUE`,
    `+KEY=VALUE`, `~KEY`), one of them as a text, or values by dotted key, which are taken as they are. Values may be
    NumPy's scalars, paths and tuples. `results`, as in `run`, is where the runs are that the spec takes models of.
    Releases that it names are those that `nip-run.lock` pins, as `nip-run install` left them.

        >>> from runner import load_spec
        >>> spec = load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "agents.prover.max_response_words": 50})
        >>> len(spec.dataset.datapoints)
        2
        >>> load_spec({"extends": "quickstart.yaml", "name": "mine"}, ["dataset.limit=2"]).experiment.name
        'mine'

    Raises:
        SpecError: with everything that is wrong, in all files, as `problems`; also where the spec sweeps (see
            `load_specs`).
    """
    return specs.load_spec(source, overrides, results_at(results).path_of, finder_of(source))


def load_specs(source: SpecSource, overrides: Overrides = (), results: str | Path | None = None) -> list[Spec]:
    """Load every point of a spec's sweep, in order: the first key varies slowest. See `load_spec`.

    Of a run's folder, the spec that was saved in it.

        >>> from runner import load_specs
        >>> points = load_specs("specs/quickstart.yaml", {"dataset.limit": 2, "sweep": {"seed": [0, 1]}})
        >>> [spec.point for spec in points]
        [{'seed': 0}, {'seed': 1}]

    Raises:
        SpecError: with everything that is wrong, in all files and all points.
    """
    return specs.load_specs(source, overrides, results_at(results).path_of, finder_of(source))


def check(spec: Spec | SpecSource) -> Check:
    """See what a spec would play and cost. Calls no model, writes nothing. Overrides: check `load_spec(...)`.

        >>> from runner import SpecError, check
        >>> check("specs/quickstart.yaml").calls
        (96, 672)
        >>> try:
        ...     check({"extends": "specs/quickstart.yaml", "protocol": {"use": "debat"}})
        ... except SpecError as error:
        ...     print(error.problems[0].message)
        no protocol 'debat'; did you mean 'debate'?; or give a .yaml file

    Raises:
        SpecError: with everything that is wrong, as `problems`.
    """
    read = loaded(spec)
    plan = plan_of(read)
    return Check(
        spec=read,
        run_id=plan.run_id,
        rollouts=sum(games.size for games in plan.all_games()),
        datapoints=len(read.dataset.datapoints),
        models=tuple(estimate(read)),
        keys=tuple(map(str, key_uses_of(plan))),
        warnings=(*map(str, read.renamed), *check_warnings_of(read)),
    )


def estimate(spec: Spec | SpecSource) -> list[CostEstimate]:
    """Calls, tokens and cost of a whole run by model group: from the shortest games to the longest, without retries.

    Tokens are rough: four bytes of a prompt are one, and an answer goes from its word limit to the most that its model
    may say. What fine-tuning costs is not in it.

        >>> from runner import estimate
        >>> [(row.group, row.model, row.calls, row.cost_usd) for row in estimate("specs/quickstart.yaml")]
        [('offline', 'dummy', (96, 672), (0.0, 0.0))]

    Raises:
        SpecError: with everything that is wrong, as `problems`.
    """
    return sum_by_group(row for games in plan_of(loaded(spec)).all_games() for row in estimate_costs(games))


def sample_size(
    spec: Spec | SpecSource,
    detect: float,
    *,
    from_runs: Sequence[str | Path] = (),
    against: str | Path | None = None,
    results: str | Path | None = None,
) -> SampleSize:
    """How many datapoints and repeats show a difference of `detect` (0.05: five points), and what they would cost.

    At a power of 80 % and a level of 5 %. The variance is that of an earlier run of a like system, or of two that are
    like those to be compared (`from_runs`); or that of the run which this one is compared `against`, and which is not
    played again. Without any it is the most that there may be. `results` is as in `run`.

        >>> from runner import load_spec, run, sample_size
        >>> size = sample_size("specs/quickstart.yaml", 0.2)
        >>> size.rows[0].groups, size.rows[0].datapoints, size.rows[0].calls, size.cheapest
        (112, 224, (224, 1568), None)
        >>> played = run(load_spec("specs/quickstart.yaml", {"name": "varied", "rollouts.per_datapoint": 2}))
        >>> size = sample_size("specs/quickstart.yaml", 0.2, from_runs=["varied"])
        >>> [row.repeats for row in size.rows]
        [1, 2, 3, 5, 10]

    Raises:
        SpecError: with everything that is wrong, as `problems`.
        UsageError: what is asked is out of bounds, or a run is not there, not finished, or on other datapoints.
        RunError: the files of a run are damaged.
    """
    plan = plan_of(loaded(spec))
    if isinstance(plan, TrainingPlan):
        raise UsageError("the spec trains models; plan a benchmark of them (kind: benchmark)")
    other = None if against is None else str(against)
    return sample_size_of(plan, detect, results_at(results), from_runs=[str(one) for one in from_runs], against=other)


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
    """How long a run takes with so many workers or shards, and what bounds it.

    For some seconds (`measure` for each thing) it plays games of the spec by `dummy`, on the disk of the results, and
    throws them away. What is known of its games and servers is that of an earlier run: `like`, or else the newest that
    fits. `cores` are those of all machines together; default: of this one. `results` is as in `run`.

        >>> from runner import duration
        >>> found = duration("specs/quickstart.yaml", measure=0.02)
        >>> found.games, found.bounds[0].name, found.servers_known
        (96, 'core', True)

    Raises:
        SpecError: with everything that is wrong, as `problems`.
        UsageError: what is asked is out of bounds, or not known of such a run; `like` is no run that is like it.
        RunError: nothing can be measured here, or the files of a run are damaged.
    """
    from runner.runs.planning.duration import PlayOptions, duration_of  # loads all that plays

    plan = plan_of(loaded(spec))
    if isinstance(plan, TrainingPlan):
        raise UsageError("the spec trains models; plan a benchmark of them (kind: benchmark)")
    asked = PlayOptions(workers, shards, cores, None if like is None else str(like), measure)
    return duration_of(plan, results_at(results), asked)


def load_protocol(name: str, parameters: Mapping[str, Any] | None = None, *, folder: str | Path = ".") -> Protocol:
    """Load a protocol by its built-in name, or by its file's path from a folder, with parameters for it.

        >>> from runner import load_protocol
        >>> debate = load_protocol("debate", {"max_message_rounds": 4})
        >>> debate.agent_names, debate.max_message_rounds
        (('prover0', 'prover1', 'verifier'), 4)

    Raises:
        SpecError: with everything that is wrong with the file or with the parameters for it.
    """
    refused: list[tuple[KeyPath, str]] = []
    values = plain({"protocol": dict(parameters or {})}, refused)["protocol"]
    if refused:
        raise SpecError([Problem(Place("protocol"), ".".join(map(str, at)), message) for at, message in refused])
    protocol = protocols.load_protocol(name, values, folder=Path(folder))
    problems = list(protocols.unplayable(protocol, lambda _: Place("protocol")))
    if problems:
        raise SpecError(problems)
    return protocol
