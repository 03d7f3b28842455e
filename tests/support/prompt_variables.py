"""Variables for rendering prompts in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.game.prompts.templates import own_variables, prompt_variables
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.protocol import Protocol

COLUMNS = {"question": "What is it?", "solution": "def f():\n    return 1\n", "size": 5}


def make_prompt_variables(
    protocol: Protocol, agent: str, *, columns: Mapping[str, Any] = COLUMNS, prover_stance: int = 1, round_: int = 0
) -> dict[str, object]:
    game_variables = own_variables(
        protocol,
        agent,
        prover_stance=prover_stance,
        round_=round_,
        max_response_words=137,
        decision_format=DecisionFormat(confidence=""),
    )
    return prompt_variables(columns, game_variables)
