"""The plugins that a spec names: providers, training backends and metrics.

A spec is checked without importing its plugins. They are imported when it is played, after the user's consent if the
spec was downloaded (`runner.training.trust`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.base.errors import UsageError
from runner.base.plugins import PluginKind, PluginPins
from runner.base.problems import Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.merged_data import LayeredData
from runner.models.provider_traits import PROVIDER_PLUGINS
from runner.spec.backend_traits import BACKEND_PLUGINS
from runner.spec.experiment import Experiment
from runner.spec.origin import find_values
from runner.spec.schemas import experiment_schema

METRIC_PLUGINS = PluginKind("nip_run.metrics", "metric", "a PluginMetric", tuple)
"""Plugins that compute metrics. `runner.results.metric_plugins` imports them and knows the built-in names."""

_KEYS = (
    (PROVIDER_PLUGINS, ("models", "*", "provider"), "ModelSettings"),
    (BACKEND_PLUGINS, ("training", "trainers", "*", "backend"), "TrainerSettings"),
)
"""The keys that name a plugin or something built in, each with the definition in the schema that lists the names."""


def schema_with_plugins(layered: LayeredData, *, saved: bool) -> tuple[dict[str, Any], list[Problem]]:
    """Return the schema of a spec, which also accepts the plugins that the spec names, and the problems of the plugins.

    With `saved`, a run is only read, so that its plugins need not be installed.
    """
    schema, problems = experiment_schema(), list[Problem]()
    for kind, key, definition in _KEYS:
        values = {value: path for path, value in find_values(layered.data, key, ()) if isinstance(value, str)}
        if plugin_names := values.keys() - set(kind.builtin()):
            accepted = set(plugin_names)
            try:
                if not saved and any(kind.find(name) is None for name in plugin_names):
                    accepted = {plugin.name for plugin in kind.list_all()}  # the schema's error lists them
            except UsageError as error:
                problems.append(layered.problem_at(values[min(plugin_names)], str(error)))
            schema["$defs"][definition]["properties"][key[-1]]["enum"] += sorted(accepted)
    return schema, [*problems, *([] if saved else _metric_problems(layered))]


def _metric_problems(layered: LayeredData) -> Iterator[Problem]:
    """Yield a problem for each name in `metrics` that no plugin has."""
    names = layered.data.get("metrics")
    for name in names if isinstance(names, list) else ():
        try:
            if not isinstance(name, str) or METRIC_PLUGINS.find(name) is not None:
                continue
            installed = METRIC_PLUGINS.installed_names()
            hint = did_you_mean(name, installed) or f"; installed: {comma_join(installed) or 'none'}"
            message = f"no installed plugin has a metric {name!r}, and built-in metrics need no entry here{hint}"
        except UsageError as error:
            message = str(error)
        yield layered.problem_at(("metrics",), message)


def find_pins(experiment: Experiment) -> PluginPins:
    """Return the distribution, version and hash of each plugin that a spec names.

    Raises:
        UsageError: the files of a plugin cannot be read.
    """
    trainers = () if experiment.training is None else experiment.training.trainers.values()
    names = (
        *((PROVIDER_PLUGINS, settings.provider) for settings in experiment.models.values()),
        *((BACKEND_PLUGINS, trainer.backend) for trainer in trainers),
        *((METRIC_PLUGINS, name) for name in experiment.metrics),
    )
    used = (kind.find(name) for kind, name in names if name not in kind.builtin())
    return {plugin.key: plugin.pin for plugin in used if plugin is not None}
