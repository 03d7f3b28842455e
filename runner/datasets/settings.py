"""The `dataset` section of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from runner.documents.fields import option


@dataclass(frozen=True, kw_only=True)
class DatasetLimits:
    """What a dataset may come to. A file of some kilobytes can hold gigabytes, and a filter need any time."""

    bytes: int = option("Bytes of the file, unpacked.", default=256 << 20, minimum=1)
    rows: int = option("Rows of the file.", default=1_000_000, minimum=1)
    columns: int = option("Columns of the file.", default=1_000, minimum=1)
    seconds: float = option(
        "For the filter, and for measuring a Parquet file.", default=60.0, exclusiveMinimum=0, maximum=86_400
    )
    memory: int = option(
        "Bytes of memory for the filter, and for measuring a Parquet file: they run in a process of their own.",
        default=2 << 30,
        minimum=1 << 29,
    )


_RAISED = DatasetLimits(bytes=8 * DatasetLimits.bytes, rows=8 * DatasetLimits.rows, columns=8 * DatasetLimits.columns)
_MOST = DatasetLimits(bytes=64 << 30, rows=10**9, columns=10**6)


def limits_of_saved(limits: DatasetLimits) -> DatasetLimits:
    """For the dataset that was saved with a run, and was within `limits` or was played when there were none.

    Not without any: whoever gives us a run's folder can have written what they like into it, also as its limits.
    """
    raised = {
        name: max(getattr(_RAISED, name), min(getattr(limits, name), getattr(_MOST, name)))
        for name in ("bytes", "rows", "columns")
    }
    return replace(_RAISED, **raised)


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Which datapoints are played."""

    path: str = option(
        "A .jsonl, .csv or .parquet file, or `hf://org/name` on the Hugging Face Hub (needs `nip-run[hf]`).",
        example="data/code_validation.jsonl",
        path=True,
    )
    columns: Mapping[str, str] = option(
        "Renames columns: our name to the file's. Every dataset needs `id` and `label` (0 or 1).",
        factory=dict,
        example={"id": "task_id", "label": "is_correct"},
    )
    split: str | None = option(
        "Only rows whose `split` column has this value; on the Hub, the dataset's split.", default=None, example="test"
    )
    filter: str | None = option("A SQL condition on the columns.", default=None, example="difficulty = 'hard'")
    group_by: str | None = option(
        "The column that says which datapoints belong together, such as the versions of one program: a group is one "
        "cluster in every error, and is not torn by shuffle, balance, limit or validation share. Unset: each by itself.",
        default=None,
        example="problem",
    )
    balance: Literal["none", "label"] = option(
        "`label`: as many datapoints of one label as of the other, the first of each.", default="none"
    )
    shuffle: bool = option("Order the datapoints by the spec's seed; otherwise as the file has them.", default=False)
    limit: int | None = option("At most this many datapoints, after all the rest.", default=None, example=40, minimum=1)
    revision: str | None = option("For the Hub: the commit to read.", default=None, example="4f2c1d0")
    limits: DatasetLimits = option("What it may come to.", factory=DatasetLimits)
