"""A reliability diagram: how often solutions or answers are right, by the probability that a verifier states.

A verifier is calibrated if, of the solutions that it accepts with a probability of 0.8, 80 % are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from runner.pages.charts.axes import Axis, draw_axes
from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.labels import drawable, format_count, format_number, join_facts
from runner.pages.charts.scales import Scale
from runner.pages.charts.styles import ChartFrame
from runner.results.metrics_file import ReliabilityRow


@dataclass(frozen=True)
class ReliabilityBins:
    """The games of one judge (a verifier, with one way to state confidence), in bins by its probability.

    The probability is P(accept) or, if verdicts choose from listed answers, that of the chosen answer.

    A bin has the ends `low` and `high`, the number of games `n`, the mean `confidence`, the share `right`, and the ends
    `ci_low` and `ci_high` of the share's interval.
    """

    name: str
    bins: Sequence[ReliabilityRow]
    is_of_answers: bool = False

    @property
    def probability(self) -> str:
        return "P(chosen answer)" if self.is_of_answers else "P(accept)"

    @property
    def share(self) -> str:
        return "share of right answers" if self.is_of_answers else "share of right solutions"


def reliability(judges: Sequence[ReliabilityBins], frame: ChartFrame) -> Markup:
    """Draw the curves of judges, the diagonal of a calibrated judge, and below them the number of games."""
    drawn = [replace(judge, bins=[row for row in judge.bins if _is_drawn(row)]) for judge in judges]
    if not any(judge.bins for judge in drawn):
        return empty_chart(frame, "No confidence of the verifier is known.")
    drawing, look = Drawing(frame), frame.look
    if len(drawn) > 1:
        drawing.legend([judge.name for judge in drawn])
    side = look.width * (0.8 if look.is_narrow else 0.4)
    shares = Axis("", 0.0, 1.0)
    probability, share = axis_titles(judges)
    x_scale, y_scale = draw_axes(drawing, shares, Axis(share, 0.0, 1.0), side, square=True)
    drawing.line(x_scale.at(0), y_scale.at(0), x_scale.at(1), y_scale.at(1), "reference")
    for number, judge in enumerate(drawn):
        _draw_curve(drawing, judge, x_scale, y_scale, number)
    _draw_counts(drawing, drawn, x_scale)
    drawing.note(f"x axis: {probability} · bars: number of games · dashed: a calibrated judge")
    return drawing.svg(_description(drawn))


def axis_titles(judges: Sequence[ReliabilityBins]) -> tuple[str, str]:
    """Return the titles of the axes: the probability, and the share that is right."""
    titles = {judge.probability for judge in judges}, {judge.share for judge in judges}
    return " or ".join(sorted(titles[0])), " or ".join(sorted(titles[1]))


def _is_drawn(row: ReliabilityRow) -> bool:
    return drawable(row["confidence"]) is not None and drawable(row["right"]) is not None


def _draw_curve(drawing: Drawing, judge: ReliabilityBins, x_scale: Scale, y_scale: Scale, series: int) -> None:
    offset = (series % 3) * drawing.size * 0.25  # so that points of different judges do not hide each other
    points = [(x_scale.at(row["confidence"]) + offset, y_scale.at(row["right"])) for row in judge.bins]
    if len(points) > 1:
        drawing.polyline(points, "line", series)
    for (x, y), row in zip(points, judge.bins, strict=True):
        ends = ChartEstimate("", row["right"], row["ci_low"], row["ci_high"]).ends
        if ends is not None:
            low, high = y_scale.places(ends)
            drawing.whisker((x, low), (x, high), series=series)
        drawing.mark(x, y, series, f"{judge.name}: {_bin_text(judge, row)}")


def _draw_counts(drawing: Drawing, judges: Sequence[ReliabilityBins], x_scale: Scale) -> None:
    """Draw a bar for each bin, with bars of several judges side by side, and the count above a bar if it fits."""
    size = drawing.size
    top = drawing.y + size * 1.2
    height = size * 3
    bottom = top + height
    max_digits = 4 if drawing.width > 45 * size else 3  # longer counts would overlap
    max_count = max((drawable(row["n"]) or 0.0 for judge in judges for row in judge.bins), default=0.0) or 1.0
    for number, judge in enumerate(judges):
        for row in judge.bins:
            left, right = x_scale.at(row["low"]), x_scale.at(row["high"])
            bar_width = (right - left) * 0.9 / len(judges)
            x, n = left + (right - left) * 0.05 + number * bar_width, drawable(row["n"]) or 0.0
            bar_height = height * n / max_count
            bar_top, tooltip = bottom - bar_height, f"{judge.name}: {_bin_text(judge, row)}"
            drawing.rect(x, bar_top, bar_width, bar_height, "bar", series=number, title=tooltip)
            if len(judges) == 1 and len(format_count(n)) <= max_digits:
                drawing.text(x + bar_width / 2, bar_top - size * 0.25, format_count(n), "soft", anchor="middle")
    drawing.line(x_scale.start, bottom, x_scale.end, bottom, "axis")
    drawing.y = bottom + size * 0.4


def _bin_text(judge: ReliabilityBins, row: ReliabilityRow) -> str:
    confidence, right = format_number(row["confidence"], 2), format_number(row["right"], 2)
    return f"{judge.probability} {confidence}, right {right}, {format_count(row['n'])} games"


def _description(judges: Sequence[ReliabilityBins]) -> str:
    return join_facts(f"{judge.name}: {_bin_text(judge, row)}" for judge in judges for row in judge.bins)
