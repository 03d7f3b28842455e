"""What each fine-tune backend can do: asked by the checks of a spec and by training, in the place of its name.

The backends themselves, under the same names, are `runner.training.backends.registry.BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BackendName = Literal["openai", "command", "files", "dummy"]
DatasetFormat = Literal["openai", "trl"]

HYPERPARAMETERS = ("n_epochs", "batch_size", "learning_rate_multiplier", "beta")
"""The keys of a trainer that decide what it makes of a dataset; the others say where and how it is asked."""


@dataclass(frozen=True, kw_only=True)
class BackendTraits:
    """One backend, as far as others must know it."""

    reads: frozenset[str] = frozenset()
    """The keys of a trainer that it reads, besides those that every backend does."""
    requires: frozenset[str] = frozenset()
    """Those of them that it cannot do without."""
    instead: str = ""
    """Why it does not read hyperparameters, and what to do instead."""
    format: DatasetFormat = "openai"
    """The format of its datasets where the spec names none."""
    poll_seconds: float = 30.0
    """From one poll to the next: short for a local process, long for a server."""
    min_examples: int = 1
    """It refuses datasets with fewer."""
    trains_at_server: bool = False
    """The model group's own server does the training, so it must have a fine-tuning API."""
    names_only: bool = False
    """Nothing is trained: what comes out is a name that no server knows."""
    by_hand: bool = False
    """The user trains, and gives the name with `--set-model`; the user may edit the dataset before."""


TRAITS: Mapping[BackendName, BackendTraits] = {
    "openai": BackendTraits(
        reads=frozenset({*HYPERPARAMETERS, "suffix", "validating_minutes"}), min_examples=10, trains_at_server=True
    ),
    "command": BackendTraits(
        reads=frozenset({"command", "files", "load_lora"}),
        requires=frozenset({"command"}),
        instead="your trainer is not told; give it in `command`",
        format="trl",
        poll_seconds=1.0,
    ),
    "files": BackendTraits(instead="you train by hand and choose it yourself; leave it out", by_hand=True),
    "dummy": BackendTraits(instead="nothing is trained; leave it out", names_only=True),
}
