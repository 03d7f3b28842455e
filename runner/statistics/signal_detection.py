"""Signal detection: how well verdicts separate right from wrong solutions (d'), and which way the judge leans (c).

H is the share of right solutions that are accepted and F that of wrong ones, both among decided games. d' = z(H) -
z(F); c = -(z(H) + z(F)) / 2, above 0 if the judge leans to reject (Macmillan and Creelman 2005). z(0) and z(1) are
infinite, so half a game is added to each count and one to each total (log-linear correction, Hautus 1995). Intervals:
those of H and F (Wilson at the effective sample size) are transformed by z and combined (Zou and Donner 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from runner.statistics.clustered_means import Interval, Share, difference_error, mover_interval

_NORMAL = NormalDist()


def z(share: float) -> float:
    """Return the quantile of the normal distribution; infinite at 0 and 1."""
    return _NORMAL.inv_cdf(share) if 0 < share < 1 else math.copysign(math.inf, share - 0.5)


def log_linear_share(share: Share) -> float:
    """Return a share with the log-linear correction, so that it is above 0 and below 1."""
    return (share.value * share.n + 0.5) / (share.n + 1)


@dataclass(frozen=True)
class Signal:
    """The shares of right and of wrong solutions that a judge accepts."""

    hits: Share
    false_alarms: Share

    @property
    def sensitivity(self) -> float:
        """d', the separation of right and wrong solutions."""
        return z(log_linear_share(self.hits)) - z(log_linear_share(self.false_alarms))

    @property
    def criterion(self) -> float:
        """c: above 0 if the judge leans to reject, below 0 if it leans to accept."""
        return -(z(log_linear_share(self.hits)) + z(log_linear_share(self.false_alarms))) / 2

    @property
    def sensitivity_interval(self) -> Interval:
        """The interval of d'; an end is infinite if the counts do not limit it."""
        return mover_interval(_on_z(self.hits), _on_z(self.false_alarms), self.hits.correlation(self.false_alarms))

    @property
    def criterion_interval(self) -> Interval:
        """The interval of c; an end is infinite if the counts do not limit it."""
        value, low, high = _on_z(self.false_alarms)
        negated = (-value, -high, -low)  # c = (-z(F) - z(H)) / 2
        ends = mover_interval(negated, _on_z(self.hits), -self.hits.correlation(self.false_alarms))
        return ends[0] / 2, ends[1] / 2

    @property
    def sensitivity_error(self) -> float | None:
        """The clustered standard error of d' by the delta method; None if all or none of a label were accepted."""
        return self._error(1.0, 1.0)

    @property
    def criterion_error(self) -> float | None:
        """The clustered standard error of c, like `sensitivity_error`."""
        return self._error(0.5, -1.0)

    def _error(self, scale: float, sign: float) -> float | None:
        """Return the standard error of scale * (z(H) - sign * z(F))."""
        if self.open_end is not None:
            return None
        first, second = (1 / _NORMAL.pdf(z(log_linear_share(share))) for share in (self.hits, self.false_alarms))
        return difference_error(self.hits, self.false_alarms, scale, (first, sign * second))

    @property
    def open_end(self) -> str | None:
        """The reason why an end of the intervals of d' and c is infinite; None if both ends are finite."""
        extremes = [
            f"{'every' if share.value == 1 else 'no'} {kind} solution was accepted"
            for share, kind in ((self.hits, "right"), (self.false_alarms, "wrong"))
            if share.value in (0, 1)
        ]
        return f"{' and '.join(extremes)}, which leaves an end open" if extremes else None


def _on_z(share: Share) -> tuple[float, float, float]:
    low, high = share.interval
    return z(log_linear_share(share)), z(low), z(high)
