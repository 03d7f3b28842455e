"""Detect settings that fix the verdicts instead of leaving them to the verifier.

Warnings, reports and leaderboards mention them.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.models.provider_traits import traits_of
from runner.models.toy_models import training_examples

FORCED_LABELS = "its verdicts are the labels, not answers: protocol.force_guess is 'y'"


def explain_fixed_verdicts(force_guess: str | None, verifiers: Iterable[tuple[str, str | None]]) -> str | None:
    """Return why the verdicts do not come from the verifier's answers; None if they do.

    `verifiers` has the provider and the name of each model that plays the verifier.
    """
    if force_guess == "y":
        return FORCED_LABELS
    if force_guess is not None:
        return f"its verdicts are fixed in advance, not answers: protocol.force_guess is {force_guess!r}"
    for provider, model in verifiers:
        if traits_of(provider).generates_locally and training_examples(model):
            return f"its verdicts come from the labels: the toy model {model!r} of provider dummy looks them up"
    return None
