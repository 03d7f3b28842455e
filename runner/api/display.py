"""Results and transcripts of runs, which notebooks display with figures."""

from __future__ import annotations

from runner.api.plots import Plot
from runner.rollouts import transcript as games
from runner.runs.finished import result as played


class Transcript(games.RolloutTranscript):
    """One rollout, as `RunResult.transcript` returns it. A notebook displays it as a conversation."""

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import transcript_html  # here, because runs do not need templates

        return str(transcript_html(self))


class RunResult(played.FinishedRun):
    """The result of a run. A notebook displays its metrics.

    >>> from runner import load_spec, run
    >>> result = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
    >>> result.plot("outcomes").rows[0]["games"]
    2
    """

    @classmethod
    def of(cls, result: played.FinishedRun) -> RunResult:
        """Convert a result to this class."""
        return result if isinstance(result, cls) else cls(**vars(result))

    def transcript(self, rollout: str) -> Transcript:
        """Return one game. `rollout` is a rollout's id, the beginning of an id, or the id of a datapoint.

        For a datapoint, return the game of its first rollout.

        Raises:
            UsageError: there is no such rollout, or the run is a training run: the games are in the runs of `parts()`.
            RunError: the rollout is not finished, or the journal is missing or damaged.
        """
        return Transcript(**vars(super().transcript(rollout)))

    def parts(self) -> list[played.FinishedRun]:
        """Return the runs in which a training run played games and tests, in order; an empty list for other runs."""
        return [RunResult.of(part) for part in super().parts()]

    def plot(self, name: str = "forest", *others: played.FinishedRun, metric: str | None = None) -> Plot:
        """Return a figure of this run and of `others`. `name` is the name of a figure as in `nip-run plot`.

        `metric` is the metric that `forest` and `frontier` show.

        Raises:
            UsageError: there is no such figure, or a run lacks data for it; the message says which run lacks what.
            RunError, LeaderboardError: a file of a run, or the board, is damaged.
        """
        from runner.pages.figures.catalog import figure

        return Plot(figure(name, [self.folder, *(run.folder for run in others)], metric))

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import run_html

        return str(run_html(self.manifest, self.metrics))
