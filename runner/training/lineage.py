"""What a model has become: its name, and every training behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from runner.documents.dataclass_schema import from_plain, to_plain
from runner.models.settings import FineTuneStep, ModelSettings
from runner.training.stages import ModelState

STEP_KEYS = frozenset(field.name for field in fields(FineTuneStep))


def after_training(settings: ModelSettings, untrained: ModelSettings, step: FineTuneStep) -> ModelSettings:
    """A model after one more training; one that began from scratch has only that behind it."""
    before = settings.lineage if step.from_model == settings.name else untrained.lineage
    base = untrained.base_model or untrained.name
    return replace(settings, model=step.model, base_model=base, lineage=(*before, step))


def with_states(models: Mapping[str, ModelSettings], states: Mapping[str, ModelState]) -> dict[str, ModelSettings]:
    """The models, those of them with a state as it says."""
    result = dict(models)
    for group, state in states.items():
        steps = ({name: step[name] for name in step.keys() & STEP_KEYS} for step in state["lineage"])
        lineage = tuple(from_plain(FineTuneStep, step) for step in steps)
        result[group] = replace(result[group], model=state["model"], base_model=state["base_model"], lineage=lineage)
    return result


def state_of(settings: ModelSettings) -> ModelState:
    """A model as the log and `state.json` have it."""
    return {
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "lineage": to_plain(settings.lineage),
    }
