"""The provider without a network: well-formed answers for the agent's role, drawn from rollout and sample."""

from __future__ import annotations

import random

from runner.hashing import derived_seed
from runner.models.base import Choice, Completion, Request, Usage, estimated_prompt_tokens, estimated_tokens

DECIDES = 0.3
"""How often a verifier that may go on decides all the same."""

_OPENINGS = ("Look at", "Take", "Consider", "Trace", "Compare", "Check")
_OBJECTS = (
    "the empty input",
    "the loop bound",
    "the first iteration",
    "equal keys",
    "the initial value",
    "the last branch",
)
_CLAIMS = (
    "it returns what the statement asks for",
    "the result is off by one",
    "the state is carried over",
    "the order is kept",
)


class DummyModel:
    """Answers at once. The same sample of the same rollout always gets the same answer."""

    async def complete(self, request: Request) -> Completion:
        sample = request.sample
        rng = random.Random(derived_seed("dummy", request.seed, *sample[1:]))
        text = _answer(request, rng)
        usage = Usage(estimated_prompt_tokens(request.messages), estimated_tokens(text), estimated=True)
        return Completion((Choice(text, "stop"),), "dummy", usage)

    async def close(self) -> None:
        """Nothing is open."""


def _answer(request: Request, rng: random.Random) -> str:
    wanted = request.wanted
    if wanted.accept is not None and wanted.reject is not None and (wanted.must_decide or rng.random() < DECIDES):
        return f"{_sentence(rng)}\n\n{wanted.accept if rng.random() < 0.5 else wanted.reject}"
    if wanted.headers:
        return "\n\n".join(f"{header} {_sentence(rng)}" for header in wanted.headers)
    return _sentence(rng)


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_OPENINGS)} {rng.choice(_OBJECTS)}: {rng.choice(_CLAIMS)}."
