"""The lineage of a model: its name and its fine-tuning steps, which the training loop updates after each iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.documents.dataclass_schema import from_plain, to_plain
from runner.models.settings import FineTuneStep, ModelSettings
from runner.spec.model_sources import STEP_KEYS
from runner.training.stages import ModelState


def after_training(settings: ModelSettings, untrained: ModelSettings, step: FineTuneStep) -> ModelSettings:
    """Return a model's settings after a fine-tuning step. A step that starts from the base model starts a new lineage.

    `untrained` are the settings in the spec.
    """
    earlier_steps = settings.lineage if step.from_model == settings.name else untrained.lineage
    base = untrained.base_model or untrained.name
    return replace(settings, model=step.model, base_model=base, lineage=(*earlier_steps, step))


def with_states(models: Mapping[str, ModelSettings], states: Mapping[str, ModelState]) -> dict[str, ModelSettings]:
    """Return the model groups with the models of these states."""
    result = dict(models)
    for group, state in states.items():
        steps = ({name: step[name] for name in step.keys() & STEP_KEYS} for step in state["lineage"])
        lineage = tuple(from_plain(FineTuneStep, step) for step in steps)
        result[group] = replace(result[group], model=state["model"], base_model=state["base_model"], lineage=lineage)
    return result


def state_of(settings: ModelSettings) -> ModelState:
    """Return a model's state for the log and `state.json`."""
    return {
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "lineage": to_plain(settings.lineage),
    }
