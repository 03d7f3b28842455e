"""What a call waits on top where workers are far from their writer, as on Ray: for a permit, and until it is written.

Games of the plan are played by such workers at a server of this machine, which takes as long as its servers are known
to take, with as many calls at once. What a call takes longer than that is the way to the writer and back.
"""

from __future__ import annotations

import os
from dataclasses import replace

from runner.runs.planning.answering_server import answering
from runner.runs.planning.calibration import CalibrationRun
from runner.runs.planning.server_overhead import asked_at

LONGEST = 0.5
"""Seconds of an answer at most: servers that take longer leave workers and writer more time, and less is waited."""
SHORTEST = 0.1
"""Seconds that a call is taken to last at least, where it is said how many games to play."""
WAVES = 3
"""So many games are played in each place at least."""


def can_be_measured(calibration: CalibrationRun) -> bool:
    """Whether workers are far, and on this machine, whose server they reach."""
    execution = calibration.plan.spec.experiment.execution
    return execution.engine == "ray" and execution.address is None and not os.environ.get("RAY_ADDRESS")


def far_seconds(
    calibration: CalibrationRun, workers: int, *, words: int, prompt_tokens: float, latency: float
) -> float:
    """Seconds that a call waits on top.

    Raises:
        RunError: as `CalibrationRun.played`; no port can be opened here.
    """
    experiment = calibration.plan.spec.experiment
    at_once = min(experiment.rollouts.concurrency, calibration.plan.size)
    took = min(latency, LONGEST)
    waves = max(round(calibration.seconds / max(took, SHORTEST) / calibration.fewest_calls()), WAVES)
    with answering(words, int(prompt_tokens), took) as address:
        models = {
            name: settings if settings.traits.drawn else asked_at(settings, address)
            for name, settings in experiment.models.items()
        }
        played = calibration.played(waves * at_once, replace(experiment.execution, workers=workers), models)
    return max(played.call * at_once - took, 0.0)
