"""Results and transcripts that notebooks display, with figures."""

from __future__ import annotations

from runner.api.plots import Plot
from runner.rollouts import transcript as games
from runner.runs.finished import result as played


class Transcript(games.RolloutTranscript):
    """One rollout, as `RunResult.transcript` returns it. A notebook displays it as a conversation."""

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import transcript_html  # here: a run does not wait for templates

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
        """Return one game, given by the rollout's id, the start of it, or the datapoint's id (its first rollout).

        Raises:
            UsageError: there is no such rollout, or the run is a training run, which has its games in `parts`.
            RunError: the rollout is not finished, or the journal is missing or damaged.
        """
        return Transcript(**vars(super().transcript(rollout)))

    def parts(self) -> list[played.FinishedRun]:
        """Return the games and tests of a training run in order, each a separate run; empty for other runs."""
        return [RunResult.of(part) for part in super().parts()]

    def plot(self, name: str = "forest", *others: played.FinishedRun, metric: str | None = None) -> Plot:
        """Draw a figure of this run, and of other runs next to it; names are those of `nip-run plot`.

        `metric` is for `forest` and `frontier`.

        Raises:
            UsageError: there is no such figure, or the runs lack its data; the message says which run lacks what.
            RunError, LeaderboardError: a file of a run, or the board, is damaged.
        """
        from runner.pages.figures.catalog import figure

        return Plot(figure(name, [self.folder, *(run.folder for run in others)], metric))

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import run_html

        return str(run_html(self.manifest, self.metrics))
