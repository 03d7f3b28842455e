"""The names of metrics, as the board has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean

_OF_CONFIDENCE = (
    "brier", "brier_reliability", "brier_resolution", "brier_uncertainty", "log_score", "ece", "auroc",
)  # fmt: skip
OF_GAMES = (
    "accuracy", "accuracy_excluding_failures", "accuracy_0", "accuracy_1", "precision", "recall", "decided", "decision",
    "worst_datapoint_accuracy", "episode_length", "rounds_played", "balanced_accuracy", "sensitivity", "criterion",
    "completeness", "soundness_error", "undecided_0", "undecided_1", "always_failed", "majority_accuracy", "pair_score",
    "persuasion_0", "persuasion_1", "position_bias", "swap_effect", "confidence_disagreement",
    *(f"{name}_{kind}" for kind in ("stated", "logprob") for name in _OF_CONFIDENCE),
)  # fmt: skip
OF_AGENTS = (
    "reward", "retries_per_round", "token_limit_proportion", "calls_per_message", "expected_score", "score_difference",
)  # fmt: skip


def check_metrics(wanted: Iterable[str], measured: Collection[str], agents: Collection[str]) -> None:
    """See that there are metrics of these names, of the runs of these agents; without agents, of any.

    Raises:
        UsageError: there is one that no run has.
    """
    known = [*OF_GAMES, *(f"{agent}.{name}" for agent in sorted(agents) for name in OF_AGENTS), *measured]
    for name in wanted:
        agent, _, metric = name.rpartition(".")
        if name not in known and not (agent and not agents and metric in OF_AGENTS):
            hint = did_you_mean(name, known) or f"; there are: {comma_join(known)}"
            raise UsageError(f"no metric {name!r}{hint}")
