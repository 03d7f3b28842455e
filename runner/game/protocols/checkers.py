"""Checkers, which label the answers and sub-claims that provers state: the settings, and comparisons with a column."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from runner.base.errors import StatementError
from runner.documents.dataclass_schema import option

_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?!\d|\.\d)", re.ASCII
)
_EDGES: Final = " \t\r\n.,;:!*_`$\"'“”‘’"
"""Characters that the comparison of texts ignores at both ends: punctuation, quotation marks and Markdown."""


@dataclass(frozen=True, kw_only=True)
class CheckerSettings:
    """How an answer or sub-claim that a prover states is labeled (see the protocol key `states`)."""

    by: Literal["exact", "number", "function"] = option(
        "`exact`: an answer is right if it equals the text in `column`, or one of the texts in a list; case, white "
        "space, Unicode forms, and punctuation, quotation marks and Markdown at both ends do not matter. `number`: if "
        "its number equals the number in `column`; an answer without exactly one number is requested again. "
        "`function`: if the Python function `function` returns True.",
        example="number",
    )
    column: str | None = option(
        "The column with the right answer. No template may use it. Required by `exact` and `number`.",
        default=None,
        example="target",
    )
    tolerance: float = option(
        "With `number`: the largest difference between an answer and the right one.", default=0.0, minimum=0
    )
    function: str | None = option(
        "With `function`: `MODULE:FUNCTION`, a function in `MODULE.py` in the prompts folder. It is called with the "
        "answer or sub-claim and a mapping of all columns of the datapoint, and returns True or False. If it fails, "
        "the game has no label and is lost; nip-run plays it again if you repeat the command.",
        default=None,
        example="grading:check",
        pattern="^[A-Za-z_][A-Za-z0-9_]*:[A-Za-z_][A-Za-z0-9_]*$",
        patternErrorMessage="MODULE:FUNCTION",
    )

    @property
    def source_name(self) -> str | None:
        """The name of the function's file among the prompts; None for a comparison."""
        return None if self.function is None else f"{self.function.partition(':')[0]}.checker"

    @property
    def function_name(self) -> str | None:
        return None if self.function is None else self.function.partition(":")[2]

    def describe(self) -> str:
        """Return a phrase for the rule, such as `the number in the column 'target'`."""
        if self.by == "function":
            return f"the function {self.function}"
        return f"the {'number' if self.by == 'number' else 'text'} in the column {self.column!r}"


def label_answer(checker: CheckerSettings, text: str, columns: Mapping[str, object]) -> int:
    """Return 1 if an answer equals the right one in the checker's column, otherwise 0.

    Raises:
        StatementError: the checker compares numbers, and the answer or the column has none or several.
    """
    assert checker.column is not None
    reference = columns[checker.column]
    if checker.by == "number":
        return int(abs(stated_number(text) - stated_number(str(reference))) <= Decimal(str(checker.tolerance)))
    references = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    # Parquet and JSON may store a whole number as 42.0.
    references += [int(value) for value in references if isinstance(value, float) and value.is_integer()]
    return int(_normalize(text) in [_normalize(str(value)) for value in references])


def stated_number(text: str) -> Decimal:
    """Return the only number in a text, which may have thousands separators and a unit.

    Raises:
        StatementError: the text has no number, or several.
    """
    numbers = _NUMBER.findall(text)
    if len(numbers) != 1:
        count = "no number" if not numbers else f"{len(numbers)} numbers"
        raise StatementError(f"the answer must state exactly one number, and has {count}")
    return Decimal(numbers[0].replace(",", "").replace("−", "-"))


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES)
