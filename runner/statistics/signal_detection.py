"""How well a verdict tells right from wrong (d'), and which way it leans (c), apart from each other.

Signal detection for yes and no: H is the share of right solutions that are accepted, F that of wrong ones, of decided
games. d' = z(H) - z(F); c = -(z(H) + z(F)) / 2, above 0 where the judge leans to reject (Macmillan and Creelman 2005).
z(0) and z(1) are infinite, so that half a game is added to each count and one to each total (log-linear correction,
Hautus 1995). Intervals: those of H and F (Wilson at the effective sample size), through z, put together by Zou and
Donner 2008.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from runner.statistics.clustered_means import Interval, Share, difference_error, recovered

_NORMAL = NormalDist()


def z(share: float) -> float:
    """The quantile of the normal distribution; infinite at 0 and 1."""
    return _NORMAL.inv_cdf(share) if 0 < share < 1 else math.copysign(math.inf, share - 0.5)


def corrected(share: Share) -> float:
    """A share with the log-linear correction: above 0 and below 1."""
    return (share.value * share.n + 0.5) / (share.n + 1)


@dataclass(frozen=True)
class Signal:
    """Of a judge: the shares of right and of wrong solutions that it accepts."""

    hits: Share
    false_alarms: Share

    @property
    def sensitivity(self) -> float:
        """Of right from wrong: d'."""
        return z(corrected(self.hits)) - z(corrected(self.false_alarms))

    @property
    def criterion(self) -> float:
        """c: above 0 where it leans to reject, below 0 where it leans to accept."""
        return -(z(corrected(self.hits)) + z(corrected(self.false_alarms))) / 2

    @property
    def sensitivity_interval(self) -> Interval:
        """Infinite at an end that the counts leave open."""
        return recovered(_on_z(self.hits), _on_z(self.false_alarms), self.hits.correlation(self.false_alarms))

    @property
    def criterion_interval(self) -> Interval:
        """Infinite at an end that the counts leave open."""
        value, low, high = _on_z(self.false_alarms)
        turned = (-value, -high, -low)  # c = (-z(F) - z(H)) / 2
        ends = recovered(turned, _on_z(self.hits), -self.hits.correlation(self.false_alarms))
        return ends[0] / 2, ends[1] / 2

    @property
    def sensitivity_error(self) -> float | None:
        """The clustered standard error by the delta method; None where all or none of a label were accepted."""
        return self._error(1.0, 1.0)

    @property
    def criterion_error(self) -> float | None:
        """As `sensitivity_error`."""
        return self._error(0.5, -1.0)

    def _error(self, scale: float, sign: float) -> float | None:
        """Of scale * (z(H) - sign * z(F))."""
        if self.open_end is not None:
            return None
        slope, other = (1 / _NORMAL.pdf(z(corrected(share))) for share in (self.hits, self.false_alarms))
        return difference_error(self.hits, self.false_alarms, scale, (slope, sign * other))

    @property
    def open_end(self) -> str | None:
        """Why an end of the intervals of d' and c is infinite; None where none is."""
        told = [
            f"{'every' if share.value == 1 else 'no'} {kind} solution was accepted"
            for share, kind in ((self.hits, "right"), (self.false_alarms, "wrong"))
            if share.value in (0, 1)
        ]
        return f"{' and '.join(told)}, which leaves an end open" if told else None


def _on_z(share: Share) -> tuple[float, float, float]:
    low, high = share.interval
    return z(corrected(share)), z(low), z(high)
