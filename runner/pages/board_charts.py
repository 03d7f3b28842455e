"""The charts of a list: what accuracy cost, and a sweep as a heat map."""

from __future__ import annotations

from markupsafe import Markup

from runner.pages.board_sweeps import Sweep
from runner.pages.boards import TaskList


def cost_chart(listed: TaskList) -> Markup | None:
    return None


def sweep_chart(sweep: Sweep, key: str) -> Markup | None:
    return None
