"""Settings by which something else than an answer of the verifier decides the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from runner.models.providers.dummy import examples_behind


def fixed_verdicts(force_guess: str | None, verifiers: Iterable[tuple[str, str | None]]) -> str | None:
    """Return why verdicts say nothing about the verifier's answers; None if they do.

    `verifiers` has the provider and the model of each model that gives verdicts.
    """
    if force_guess is not None:
        what = "the labels" if force_guess == "y" else "fixed in advance"
        return f"its verdicts are {what}, not answers: protocol.force_guess is {force_guess!r}"
    for provider, model in verifiers:
        if provider == "dummy" and examples_behind(model):
            return f"its verdicts come from the labels: the toy model {model!r} of provider dummy looks them up"
    return None
