"""The page where readers label the units of an analyzer."""

from __future__ import annotations

from collections.abc import Mapping

from runner.analysis.label_queue import LabelQueue
from runner.pages.live.question_page import QuestionPage


class LabelPage(QuestionPage):
    """The page of questions, with undo and the reader's progress."""

    def __init__(self, labels: LabelQueue, title: str) -> None:
        super().__init__(labels, title)
        self._labels = labels

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Take back a reader's last label (`undo`), or do what a page of questions does, and add the progress.

        Raises:
            UsageError: the answer or the name is invalid, or there is nothing to take back.
            RunError: the labels could not be read or saved.
        """
        person = data.get("person")
        if name == "undo" and isinstance(person, str):
            self._labels.undo(person)
        state = super().post("take" if name == "undo" else name, data)
        if state and isinstance(person, str):
            labeled, total = self._labels.progress(person)
            state |= {"others": 0, "labeled": labeled, "total": total}
        return state
