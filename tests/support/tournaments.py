"""Small specs of tournaments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.hang_guard import HANG_SECONDS
from tests.support.specs import merge_changes, spec_file

PLAYERS = ("strong", "medium", "weak")


def tournament_spec(folder: Path, base_url: str | None = None, *, size: int = 6, **changes: Any) -> Path:
    """Write a spec of three players and one judge who debate about `size` datapoints; `changes` as in `spec_file`."""
    names = (*PLAYERS, "judge")
    server: dict[str, Any] = {"provider": "dummy"}
    if base_url is not None:
        server = {"provider": "openai", "base_url": base_url, "timeout": 2 * HANG_SECONDS}
    base = {
        "kind": "tournament",
        "fine_tune": None,
        "protocol": {"use": "debate", "max_message_rounds": 3},
        "prompts": "prompts/code_validation/debate",
        "models": {"m": None, **{name: {**server, "model": name} for name in names}},
        "agents": {"prover": None, "verifier": None, "_default": {"model": "judge"}},
        "tournament": {"players": {name: {"model": name} for name in PLAYERS}},
    }
    return spec_file(folder, base_url, size=size, **merge_changes(base, changes))
