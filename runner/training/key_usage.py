"""Finds the environment variables that a plan sends to servers and trainers, mostly API keys.

Commands print them, and a fetched (downloaded) plan needs the user's permission for each.
"""

from __future__ import annotations

from runner.game.prompts.templates import CHECKER
from runner.models.api_keys import KeyUse, host_uses, key_uses
from runner.models.settings import ModelSettings
from runner.rollouts.plan import used_models
from runner.spec.loader import Spec
from runner.training.plan import AnyPlan, TrainingPlan


def key_uses_of(plan: AnyPlan) -> tuple[KeyUse, ...]:
    """Return the variables that a plan sends to its models' servers (also for fine-tuning) and to its trainers.

    The Python functions that select candidates or label answers are programs, too, and so are plugins.
    """
    models = _models(plan).values()
    plugins = plugin_commands(plan.spec)
    prompts = (plan.spec.prompts, *plan.spec.player_prompts.values())
    functions = [
        (("python", f"{name.removesuffix(CHECKER)}.py"), ()) for templates in prompts for name in templates.functions
    ]
    if not isinstance(plan, TrainingPlan) or plan.training.rerun_tests is not None:
        return key_uses(models, [*functions, *plugins])
    from runner.training.trainer_files import shown_files

    stored = plan.spec.trainer_files
    commands = [
        (trainer.command, tuple(shown_files(stored[group], trainer.command)) if group in stored else ())
        for group, trainer in plan.training.trainers.items()
        if trainer.command
    ]
    return key_uses(models, [*functions, *plugins, *commands])


def plugin_commands(spec: Spec) -> list[tuple[tuple[str], tuple[str]]]:
    """Return each plugin of a spec as a program, with a line about its distribution."""
    return [
        (
            (f"plugin:{key.partition(':')[2]}",),
            (f"{key}, {pin['distribution']} {pin['version']}, {pin['sha256'][:12]}",),
        )
        for key, pin in spec.plugins.items()
    ]


def required_permissions(plan: AnyPlan) -> tuple[KeyUse, ...]:
    """Return what the user must allow before a fetched plan runs: API keys, programs, and servers called without a key.

    Servers whose address the user set are not included.
    """
    user_keys = plan.spec.overridden - plan.spec.point.keys()  # values of a fetched sweep are not the user's
    models = (model for group, model in _models(plan).items() if f"models.{group}.base_url" not in user_keys)
    return (*key_uses_of(plan), *host_uses(models))


def _models(plan: AnyPlan) -> dict[str, ModelSettings]:
    """Return the model groups that are called or trained."""
    experiment, models = plan.spec.experiment, dict(used_models(plan.games))
    if isinstance(plan, TrainingPlan) and plan.training.rerun_tests is None:
        trained = plan.training.trainers
        models |= {group: experiment.models[group] for group in trained if group in experiment.models}
    return models
