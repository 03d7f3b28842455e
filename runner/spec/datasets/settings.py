"""The `dataset` section of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from runner.documents.dataclass_schema import option


@dataclass(frozen=True, kw_only=True)
class DatasetLimits:
    """Limits on a dataset, since a file of some kilobytes can unpack to gigabytes, and a filter can run for hours."""

    bytes: int = option("Maximum size of the unpacked file in bytes.", default=256 << 20, minimum=1)
    rows: int = option("Maximum number of rows.", default=1_000_000, minimum=1)
    columns: int = option("Maximum number of columns.", default=1_000, minimum=1)
    seconds: float = option(
        "Seconds for the filter, and for measuring a Parquet file.", default=60.0, exclusiveMinimum=0, maximum=86_400
    )
    memory: int = option(
        "Memory limit in bytes for the filter, and for measuring a Parquet file, which run in a separate process.",
        default=2 << 30,
        minimum=1 << 29,
    )


_LIMITS_FOR_SAVED_RUNS = DatasetLimits(
    bytes=8 * DatasetLimits.bytes, rows=8 * DatasetLimits.rows, columns=8 * DatasetLimits.columns
)
_MAX_LIMITS = DatasetLimits(bytes=64 << 30, rows=10**9, columns=10**6)


def limits_for_saved_run(limits: DatasetLimits) -> DatasetLimits:
    """Return higher limits for the dataset of a saved run, which may have been played before limits existed.

    There are limits nevertheless, since somebody else may have written the folder.
    """
    raised = {
        name: max(getattr(_LIMITS_FOR_SAVED_RUNS, name), min(getattr(limits, name), getattr(_MAX_LIMITS, name)))
        for name in ("bytes", "rows", "columns")
    }
    return replace(_LIMITS_FOR_SAVED_RUNS, **raised)


@dataclass(frozen=True, kw_only=True)
class Explode:
    """List columns whose elements become datapoints, with the row's other columns.

    The id is `<row's id>-<list column>-<number>`. The group is the row, unless `group_by` names another column.
    """

    columns: Mapping[str, Literal[0, 1]] = option(
        "The list columns, each with the label of its elements. A value is a list, or a text that is a JSON list.",
        example={"solutions": 1, "buggy_solutions": 0},
        minProperties=1,
    )
    into: str = option("The new column for an element.", default="solution")
    element: str | None = option(
        "If elements are mappings: the key whose value is the text. Texts are taken as they are.",
        default=None,
        example="solution",
    )
    number: str = option("The new column for an element's number in its list, from 1.", default="number")
    row: str = option("The new column for the row's id.", default="row")
    limit: int | None = option(
        "Maximum number of elements of each list; the first ones are taken.", default=None, example=1, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Selection of the datapoints that are played."""

    path: str = option(
        "A .jsonl, .csv or .parquet file, `hf://org/name` on the Hugging Face Hub (needs `nip-run[hf]`), or an "
        "installed dataset, OWNER/NAME@VERSION.",
        example="data/code_validation.jsonl",
        path=True,
    )
    columns: Mapping[str, str] = option(
        "Renames columns: each new name with the column's name in the file. Every dataset needs `id` and `label`.",
        factory=dict,
        example={"id": "task_id", "label": "is_correct"},
    )
    labels: Mapping[str, Literal[0, 1]] = option(
        "The label, 0 or 1, of each word in the label column. 0/1, true/false and yes/no, in any case, need no entry.",
        factory=dict,
        example={"correct": 1, "buggy": 0},
    )
    ids: Literal["column", "rows"] = option(
        "`rows`: ids are row numbers, `row-1` and so on, so the order of the file must not change.",
        default="column",
    )
    explode: Explode | None = option(
        "Make a datapoint of each element of list columns.",
        default=None,
        example={"columns": {"solutions": 1, "buggy_solutions": 0}},
    )
    split: str | None = option(
        "Only rows whose `split` column has this value; on the Hub, the dataset's split.", default=None, example="test"
    )
    filter: str | None = option(
        "A SQL condition on the columns, by new or original names, with the file's values; applied after `explode`.",
        default=None,
        example="difficulty = 'hard'",
    )
    group_by: str | None = option(
        "The column that groups dependent datapoints, such as the versions of one program. A group is one cluster in "
        "every interval; shuffle, limit and validation share keep it together. Unset: each datapoint is a group.",
        default=None,
        example="problem",
    )
    balance: Literal["none", "label"] = option(
        "`label`: equally many datapoints of both labels, the first ones of each, in pairs from one group if possible.",
        default="none",
    )
    shuffle: bool = option("Shuffle the datapoints by the spec's seed; otherwise keep the file's order.", default=False)
    limit: int | None = option(
        "Maximum number of datapoints, in complete groups; applied last.", default=None, example=40, minimum=1
    )
    revision: str | None = option("For the Hub: the commit to read.", default=None, example="4f2c1d0")
    limits: DatasetLimits = option("Limits for the file and the filter.", factory=DatasetLimits)
