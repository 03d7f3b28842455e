"""What `runner` gives for notebooks: results and transcripts that show themselves, and figures of them."""

from __future__ import annotations

from runner.api.plots import Plot
from runner.rollouts import transcript as games
from runner.runs.finished import result as played


class Transcript(games.RolloutTranscript):
    """One rollout, as `RunResult.transcript` gives it. In a notebook it is shown as a conversation."""

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import transcript_html  # here: a run does not wait for templates

        return str(transcript_html(self))


class RunResult(played.FinishedRun):
    """What a run left. In a notebook it is shown with its numbers.

    >>> from runner import load_spec, run
    >>> result = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2}))
    >>> result.plot("outcomes").rows[0]["games"]
    2
    """

    @classmethod
    def of(cls, result: played.FinishedRun) -> RunResult:
        """The same result."""
        return result if isinstance(result, cls) else cls(**vars(result))

    def transcript(self, rollout: str) -> Transcript:
        """One game, by the rollout's id, the start of it, or the datapoint's id (the first rollout of it).

        Raises:
            UsageError: there is no such rollout; or of a training run, whose games are `parts`.
            RunError: the rollout is not finished, or the journal is gone or damaged.
        """
        return Transcript(**vars(super().transcript(rollout)))

    def parts(self) -> list[played.FinishedRun]:
        """Of a training run, its games and tests in order, each a run of its own; else nothing."""
        return [RunResult.of(part) for part in super().parts()]

    def plot(self, name: str = "forest", *others: played.FinishedRun, metric: str | None = None) -> Plot:
        """A figure of this run, and of others beside it: those that `nip-run plot` draws, under the same names.

        `metric` is of `forest` and `frontier`.

        Raises:
            UsageError: there is no such figure, or the runs lack what it shows; the message says which lacks what.
            RunError, LeaderboardError: a file of a run, or the board, is damaged.
        """
        from runner.pages.figures.catalog import figure

        return Plot(figure(name, [self.folder, *(other.folder for other in others)], metric))

    def _repr_html_(self) -> str:
        from runner.pages.report.notebook import run_html

        return str(run_html(self.manifest, self.metrics))
