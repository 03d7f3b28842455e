"""Properties of the fine-tuning backends. Checks and training use them, and never compare a backend's name.

The backends themselves are in `runner.training.backends.registry.BACKENDS`, with the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.base.plugins import ExtensibleTable, PluginKind

BackendName = Literal["openai", "command", "files", "dummy"]
DatasetFormat = Literal["openai", "trl"]

HYPERPARAMETERS = ("n_epochs", "batch_size", "learning_rate_multiplier", "beta")
"""Keys of a trainer that affect the trained model; the other keys say where and how the model is trained."""


@dataclass(frozen=True, kw_only=True)
class BackendTraits:
    """Properties of one backend."""

    reads: frozenset[str] = frozenset()
    """Keys of a trainer that only this backend and some others read."""
    requires: frozenset[str] = frozenset()
    """Keys among `reads` that must be set."""
    instead: str = ""
    """The end of the message about a hyperparameter that the backend does not read: the reason, and what to do."""
    format: DatasetFormat = "openai"
    """Format of the training files if the spec does not set a format."""
    poll_seconds: float = 30.0
    """Seconds between two checks of whether the training has ended."""
    min_examples: int = 1
    """The backend rejects training files with fewer examples."""
    trains_at_server: bool = False
    """The model group's server does the training, so it needs a fine-tuning API."""
    names_only: bool = False
    """Nothing is trained: the backend returns the name of a model that no server knows."""
    by_hand: bool = False
    """The user trains the model by hand, may first edit the training files, and names the model with `--set-model`."""


_BUILTIN: Mapping[BackendName, BackendTraits] = {
    "openai": BackendTraits(
        reads=frozenset({*HYPERPARAMETERS, "suffix", "validating_minutes"}), min_examples=10, trains_at_server=True
    ),
    "command": BackendTraits(
        reads=frozenset({"command", "files", "load_lora"}),
        requires=frozenset({"command"}),
        instead="your trainer does not receive this value; pass the value in `command`",
        format="trl",
        poll_seconds=1.0,
    ),
    "files": BackendTraits(
        instead="you choose this value yourself when you train by hand; leave the key out", by_hand=True
    ),
    "dummy": BackendTraits(instead="nothing is trained; leave the key out", names_only=True),
}

_PLUGIN = BackendTraits(reads=frozenset(HYPERPARAMETERS), format="trl", poll_seconds=1.0)
"""The properties of all backends of plugins, so that a spec can be checked without importing them."""

TRAITS = ExtensibleTable[BackendTraits](_BUILTIN, lambda _: _PLUGIN)

BACKEND_PLUGINS = PluginKind(
    "nip_run.backends", "training backend", "a function that takes a TrainedGroup and returns a Backend", lambda: TRAITS
)
