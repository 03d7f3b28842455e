"""Which variables a plan of either kind sends where."""

from __future__ import annotations

from runner.models.api_keys import KeyUse, host_uses, key_uses
from runner.models.settings import ModelSettings
from runner.runs.execution.spending import used_models
from runner.training.plan import AnyPlan, TrainingPlan
from runner.training.trainer_files import shown_files


def key_uses_of(plan: AnyPlan) -> tuple[KeyUse, ...]:
    """What its models send to their servers, to be fine-tuned too, and what trainers of one's own get."""
    models = _models(plan).values()
    if not isinstance(plan, TrainingPlan) or plan.training.rerun_tests is not None:
        return key_uses(models)
    stored = plan.spec.trainer_files
    commands = [
        (trainer.command, tuple(shown_files(stored[group], trainer.command)) if group in stored else ())
        for group, trainer in plan.training.trainers.items()
        if trainer.command
    ]
    return key_uses(models, commands)


def to_allow(plan: AnyPlan) -> tuple[KeyUse, ...]:
    """What a run of a plan that came from elsewhere needs to be allowed: keys, programs, and servers asked without a
    key, but for those whose address the user gave.
    """
    given = plan.spec.overridden - plan.spec.point.keys()  # a sweep of a stranger's wins over what was given
    asked = (model for group, model in _models(plan).items() if f"models.{group}.base_url" not in given)
    return (*key_uses_of(plan), *host_uses(asked))


def _models(plan: AnyPlan) -> dict[str, ModelSettings]:
    """The model groups that are asked, or trained."""
    experiment, models = plan.spec.experiment, dict(used_models(plan.games))
    if isinstance(plan, TrainingPlan) and plan.training.rerun_tests is None:
        trained = plan.training.trainers
        models |= {group: experiment.models[group] for group in trained if group in experiment.models}
    return models
