"""All that is measured on this machine for one prediction, and what a call costs by that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.process import cores_here
from runner.runs.planning.calibration import CalibrationRun, MeasuredRun, MergeCost
from runner.runs.planning.duration_model import Costs, GroupUse
from runner.runs.planning.remote_latency import can_be_measured, far_seconds
from runner.runs.planning.server_overhead import LiveCost, live_cost

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Measurements:
    """What was measured."""

    first: MeasuredRun
    """A few games, which tell what a run takes by itself."""
    one: MeasuredRun
    """One process that plays."""
    workers: MeasuredRun | None
    worked: int
    """How many workers played."""
    live: LiveCost | None
    merge: MergeCost | None
    """None where nothing is merged."""
    far: float = 0.0
    """Seconds that a call waits for a writer that is far."""
    live_share: float = 1.0
    """The share of calls that go to servers."""

    @property
    def slowed(self) -> float:
        """How much longer than its work takes a process takes here, beside all else that this machine does."""
        return max(self.one.call / self.one.call_cpu, 1.0)

    @property
    def end_call(self) -> float:
        """Seconds after the last game, a call."""
        return max((self.one.end - self.first.end) / (self.one.calls - self.first.calls), 0.0)

    @property
    def journal_bytes(self) -> float:
        return self.one.journal_bytes if self.live is None else self.live.journal_bytes

    def costs(self, start: float, workers: int, cores: int) -> Costs:
        """What a call costs of what plays; `start` is what it took to load the spec."""
        played = self.workers or self.one
        live = 0.0 if self.live is None else self.live.seconds * self.live_share * self.slowed
        worker = writer = together = None
        if self.workers is not None:
            cpu = self.workers.workers_cpu
            worker = (self.one.call if cpu is None else cpu * self.slowed) + live
            writer = self.workers.call_cpu * self.slowed
            if self.worked == workers and cores == cores_here():
                together = self.workers.call + live / min(workers, cores)
        return Costs(
            core=self.one.call + live,
            worker=worker,
            writer=writer,
            together=together,
            begin=start + played.begin,
            end=max(played.end - self.end_call * played.calls, 0.0),
            end_call=self.end_call,
            merge_once=0.0 if self.merge is None else self.merge.once,
            merge=0.0 if self.merge is None else self.merge.call,
            far=self.far,
        )


def measurements(
    calibration: CalibrationRun, results: Results, tell: Tell, *, workers: int, shards: int, live: Sequence[str],
    use: Mapping[str, GroupUse], latency: float | None,
) -> Measurements:  # fmt: skip
    """Measure what these need.

    `live` are the groups that servers answer, and `use` what a game asks of each group; `latency` is how long a call
    takes, where that is known.
    """
    tell("measuring what a call costs here, with games of the provider dummy")
    one = calibration.of_one_process()
    worked = min(workers, max(cores_here(), 2))
    many = None
    is_on_ray = calibration.plan.spec.experiment.execution.engine == "ray"
    if workers > 1 or is_on_ray:
        tell(f"measuring workers {'on Ray ' if is_on_ray else ''}and their writer")
        many = calibration.of_workers(worked, one.call)
    merge = None
    if shards > 1:
        tell("measuring a merge of shards")
        merge = calibration.of_merge()
    cost, share, far = None, 0.0, 0.0
    asked = {name: use[name] for name in live if name in use and use[name].calls > 0}
    if asked:
        tell("measuring what a server's answer costs on top")
        group = max(asked, key=lambda name: asked[name].calls)
        share = sum(one.calls for one in asked.values()) / sum(one.calls for one in use.values())
        words, tokens = calibration.words[group], use[group].prompt_tokens / use[group].calls
        cost = live_cost(calibration.plan, results, group, words=words, prompt_tokens=tokens)
        if latency and can_be_measured(calibration):
            tell("measuring how long calls wait for the writer")
            far = far_seconds(calibration, worked, words=words, prompt_tokens=tokens, latency=latency)
    return Measurements(calibration.first, one, many, worked, cost, merge, far, share)
