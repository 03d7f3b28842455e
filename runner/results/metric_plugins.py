"""Metrics of plugins. Once its plugin is imported, such a metric is an entry of `METRICS` like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError
from runner.base.plugins import Plugin
from runner.documents.fetched_files import MARKER, describe_origin
from runner.models.api_keys import KeyUse, allowed_commands
from runner.results.manifest import Manifest
from runner.results.metric_definitions import METRICS, Metric, Source
from runner.spec.plugins import METRIC_PLUGINS

if TYPE_CHECKING:
    from runner.results.game_measurements import GameFacts
    from runner.rollouts.rollout import Rollout
    from runner.spec.loader import Spec


@dataclass(frozen=True, kw_only=True)
class PluginMetric:
    """A metric that a plugin computes for each game: the value of an entry point in the group `nip_run.metrics`.

    >>> from runner import PluginMetric
    >>> PluginMetric(description="messages of a game", compute=lambda rollout: len(rollout.rounds)).better
    0
    """

    description: str
    compute: Callable[[Rollout], float | None]
    """Returns the value of a game, or None if the game does not count. It must be a function of the game alone."""
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    better: int = 0
    """1: larger is better; -1: smaller is better; 0: neither."""
    is_proportion: bool = False
    """Whether each value is 0 or 1, so that the mean has the interval of a share."""


PLUGINS = replace(
    METRIC_PLUGINS,
    builtin=lambda: [name for name, metric in METRICS.items() if not metric.is_plugin],
    is_valid=lambda value: isinstance(value, PluginMetric),
)


def add_plugin_metrics(names: Iterable[str]) -> None:
    """Import the plugins of these metrics, and add the metrics to `METRICS`.

    Raises:
        UsageError: there is no such plugin, or it cannot be used.
    """
    for name in names:
        if name not in METRICS:
            METRICS[name] = _build_metric(*PLUGINS.load(name))


def add_named_metrics(names: Iterable[str]) -> None:
    """Add the metrics that the user names and that only a plugin has. Other unknown names are left to the caller.

    Raises:
        UsageError: a plugin cannot be used.
    """
    add_plugin_metrics(name for name in names if name not in METRICS and PLUGINS.find(name) is not None)


def check_recorded_plugins(spec: Spec, allowed: Collection[KeyUse]) -> None:
    """Check that the metrics of a played run may be computed again, before their plugins are imported.

    `spec` is the run's saved spec, with the plugins that the run's manifest records.

    Raises:
        UsageError: the run was downloaded, and the user has not allowed the plugin; or the plugin is not installed in
            the recorded version.
    """
    for name in spec.experiment.metrics:
        if name in PLUGINS.builtin():
            continue
        if spec.fetched is not None and not allowed_commands([f"plugin:{name}"]) <= set(allowed):
            raise UsageError(
                f"{spec.path} {describe_origin(spec.path, spec.fetched)}, and its metric {name!r} runs the code of a "
                f"plugin; nothing was run. If you trust this plugin, copy the run out of {spec.fetched} without the "
                f"file {MARKER}, and use the copy"
            )
        plugin, recorded = PLUGINS.find(name), spec.plugins.get(PLUGINS.key(name))
        if recorded is None:
            raise UsageError(f"the run of {spec.path} has no plugin for the metric {name!r}; restore its manifest")
        if plugin is None or plugin.pin != recorded:
            installed = "no such plugin" if plugin is None else describe_pin(plugin.pin)
            raise UsageError(
                f"the run of {spec.path} has the metric {name!r} of {describe_pin(recorded)}, but {installed} is "
                f"installed; install {recorded['distribution']} {recorded['version']}, and repeat the command"
            )


def describe_pin(pin: Mapping[str, str]) -> str:
    """Describe a value in `PluginPins`. Two versions under development may differ only in the hash."""
    return f"{pin['distribution']} {pin['version']} (sha256 {str(pin['sha256'])[:12]})"


def check_same_plugins(name: str, manifests: Sequence[Manifest]) -> None:
    """Check that a metric of a plugin has the same version in all runs.

    Raises:
        UsageError: a run does not have the metric, or another version of the plugin computed it.
    """
    if name not in METRICS or not METRICS[name].is_plugin:
        return
    pins = {manifest.run_id: (manifest.plugins or {}).get(PLUGINS.key(name)) for manifest in manifests}
    if missing := [run_id for run_id, pin in pins.items() if not pin]:
        raise UsageError(
            f"{missing[0]} has no metric {name!r}. Add metrics=[{name}] to the command that played it; its games are "
            "not played again"
        )
    if len({repr(pin) for pin in pins.values()}) > 1:
        raise UsageError(
            f"{' and '.join(pins)} have {name!r} from different versions of its plugin. Repeat the commands that "
            "played them, which computes the metric again; their games are not played again"
        )


def find_plugin_metrics(metrics: Mapping[str, object], manifest: Manifest) -> list[str]:
    """Return the names of the metrics in a `metrics.json` that the run has from plugins.

    They cannot be recomputed without the plugins. A built-in metric is not among them, even if a manifest claims a
    plugin for it.
    """
    rows, of_plugins = metrics.get("metrics"), (manifest.plugins or {}).keys() - set(map(PLUGINS.key, METRICS))
    names = [str(row.get("metric")) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [name for name in dict.fromkeys(names) if PLUGINS.key(name) in of_plugins]


def without_plugin_metrics(metrics: Mapping[str, object], manifest: Manifest) -> dict[str, object]:
    """Return the content of a `metrics.json` without the metrics that the run has from plugins."""
    rows, of_plugins = metrics.get("metrics"), set(find_plugin_metrics(metrics, manifest))
    if not isinstance(rows, list) or not of_plugins:
        return dict(metrics)
    other_rows = [row for row in rows if not isinstance(row, Mapping) or str(row.get("metric")) not in of_plugins]
    return {**metrics, "metrics": other_rows}


def _build_metric(plugin: Plugin, definition: PluginMetric) -> Metric:
    return Metric(
        name=plugin.name,
        description=definition.description,
        over="games with a value",
        source=Source.GAMES,
        compute=_GameFunction(plugin, definition),
        unit=definition.unit,
        low=definition.low,
        high=definition.high,
        better=definition.better,
        is_proportion=definition.is_proportion,
        needs_labels=False,
        with_answers=True,
        sql=f"(plugin_metrics->>'{plugin.name}')::DOUBLE",
        is_plugin=True,
    )


@dataclass(frozen=True)
class _GameFunction:
    """Computes the values of one game, and checks them."""

    plugin: Plugin
    metric: PluginMetric

    def __call__(self, game: GameFacts) -> tuple[float, ...]:
        with self.plugin.reported_errors():
            value: Any = self.metric.compute(game.rollout)
            if value is None:
                return ()
            number = _to_float(value)
            valid = {0, 1} if self.metric.is_proportion else None
            is_finite = math.isfinite(number)
            if not is_finite or not self.metric.low <= number <= self.metric.high or (valid and number not in valid):
                expected = "0 or 1" if valid else f"a number from {self.metric.low:g} to {self.metric.high:g}"
                raise RunError(
                    f"{self.plugin} returned {str(value)[:40]!r} for rollout {game.rollout.job.rollout_id}, but must "
                    f"return {expected}, or None"
                )
        return (number,)


def _to_float(value: object) -> float:
    """Return a number as a float; NaN if the value is not a number, or too large for a float."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan
