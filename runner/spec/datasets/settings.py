"""The `dataset` section of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from runner.documents.dataclass_schema import option
from runner.game.protocols.checkers import CheckerSettings


@dataclass(frozen=True, kw_only=True)
class DatasetLimits:
    """Limits on a dataset, because a small file can unpack to gigabytes, and a filter can run for hours."""

    bytes: int = option("Maximum size of the unpacked file in bytes.", default=256 << 20, minimum=1)
    rows: int = option("Maximum number of rows.", default=1_000_000, minimum=1)
    columns: int = option("Maximum number of columns.", default=1_000, minimum=1)
    seconds: float = option(
        "Time limit in seconds for the filter, and for measuring the size of a Parquet file.",
        default=60.0,
        exclusiveMinimum=0,
        maximum=86_400,
    )
    memory: int = option(
        "Memory limit in bytes of the separate process that applies the filter and measures a Parquet file.",
        default=2 << 30,
        minimum=1 << 29,
    )


_LIMITS_FOR_SAVED_RUNS = DatasetLimits(
    bytes=8 * DatasetLimits.bytes, rows=8 * DatasetLimits.rows, columns=8 * DatasetLimits.columns
)
_MAX_LIMITS = DatasetLimits(bytes=64 << 30, rows=10**9, columns=10**6)


def limits_for_saved_run(limits: DatasetLimits) -> DatasetLimits:
    """Return higher limits for the dataset of a saved run, because the run may be older than the limits.

    There is still a maximum, because somebody else may have written the run's folder.
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
        "The columns that contain lists, each with the label of its elements. A list is a list value, or a text in "
        "JSON.",
        example={"solutions": 1, "buggy_solutions": 0},
        minProperties=1,
    )
    into: str = option("Name of the new column for the element.", default="solution")
    element: str | None = option(
        "If elements are mappings: the key that has the element's text. null: elements are texts.",
        default=None,
        example="solution",
    )
    number: str = option("Name of the new column for the element's position in its list, from 1.", default="number")
    row: str = option("Name of the new column for the row's id.", default="row")
    limit: int | None = option(
        "Use only this many elements from the start of each list.", default=None, example=1, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class TransformStep:
    """A change of some columns. Each step changes the result of the steps before it. An empty value stays empty."""

    step: Literal["strip_comments", "normalize", "truncate", "rename", "join"] = option(
        "`strip_comments`: remove comments, and lines that only have a comment, but not docstrings. `normalize`: use "
        "`\\n` at the end of lines, and four spaces for a tab in indentation; remove blanks at the end of lines, and "
        "blank lines apart from single ones inside the text. `truncate`: remove all characters after the first "
        "`characters`. `rename`: call the column `into`. `join`: replace the columns by one column `into`.",
        example="strip_comments",
    )
    columns: tuple[str, ...] = option(
        "The columns to change, by their new names; not `id` and `label`. `rename` takes one column.",
        example=["solution"],
        minItems=1,
    )
    language: Literal["python", "c"] | None = option(
        "Required by `strip_comments`. `python`: Python 3; other texts are an error. `c`: C, C++, Java, Go, JavaScript "
        "and similar languages; removes `//` to the end of the line and `/* */`, unless they are in quotes.",
        default=None,
        example="python",
    )
    characters: int | None = option(
        "Required by `truncate`: the maximum length of a text.", default=None, example=4000, minimum=1
    )
    into: str | None = option("Required by `rename` and `join`: the new name.", default=None, example="program")
    separator: str | None = option(
        "For `join`: the text between two values. null: an empty line.", default=None, example=", "
    )


@dataclass(frozen=True, kw_only=True)
class TranscriptSettings:
    """Reading of `path` as transcripts of agents, which Inspect, Scout, nip-run and other tools write.

    The rows are grouped by `sample`, unless `group_by` names another column.
    """

    unit: Literal["sample", "message", "tool_call"] = option(
        "The part of a transcript that becomes a row: a whole `sample`, each `message`, or each `tool_call`. For the "
        "last two, the column `transcript` has only the messages before.",
        default="sample",
        example="tool_call",
    )
    label: str | None = option(
        "The score, or the key of the metadata, that becomes the label of all rows of a sample. Samples that failed, "
        "and samples without this score, are skipped with a note. null: the rows have no labels, and no sample is "
        "skipped.",
        default=None,
        example="includes",
    )
    threshold: float = option(
        "A score of at least this number is label 1. The grades C, P, I and N count as 1, 0.5, 0 and 0.", default=0.5
    )
    reasoning: bool = option("Include the reasoning of models in the column `transcript`.", default=True)


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Selection of the datapoints that are played."""

    path: str = option(
        "The dataset: a .jsonl, .csv or .parquet file, `hf://org/name` on the Hugging Face Hub (needs `nip-run[hf]`), "
        "or an installed dataset OWNER/NAME@VERSION. With `transcripts`: a file or folder of transcripts.",
        example="data/code_validation.jsonl",
        path=True,
    )
    transcripts: TranscriptSettings | None = option(
        "Read the file as transcripts of agents: an Inspect log (.eval or .json), chats or a Hugging Face session "
        "trace (.jsonl), a file of Scout (.parquet), the folder of a finished run, or a folder with such files. null: "
        "the file is a table.",
        default=None,
        example={"unit": "tool_call", "label": "includes"},
    )
    columns: Mapping[str, str] = option(
        "Names of columns: nip-run's name, then the name in the file, such as `id: claim_id`. Every dataset needs "
        "`id` and, without a `checker`, `label`.",
        factory=dict,
        example={"id": "task_id", "label": "is_correct"},
    )
    labels: Mapping[str, Literal[0, 1, "skip"]] = option(
        "The label (0 or 1) that each word in the label column stands for. Not needed for 0 and 1, true and false, "
        "yes and no. `skip`: do not use rows with this word; the word `''` stands for an empty cell.",
        factory=dict,
        example={"correct": 1, "buggy": 0, "unsure": "skip"},
    )
    answers: str | tuple[str, ...] | None = option(
        "For protocols with `answers: listed`: the column with the list of candidate answers (a list value, or a text "
        "in JSON), or the columns with one answer each. The column `label` then names the right answer, or a list of "
        "right answers. Templates see the answers only as the variable `answers`. null: datapoints have labels 0 and "
        "1, and no answers.",
        default=None,
        example=["right_answer", "wrong_answer"],
        anyOf=[
            {"type": ["string", "null"], "minLength": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ],
    )
    right_answers: Literal["auto", "text", "letter", "number", "index"] = option(
        "How the column `label` names a right answer: by its `text`, `letter` (A is the first answer of the file), "
        "`number` (from 1) or `index` (from 0). `auto`: by one of the first three, if it is clear by which.",
        default="auto",
    )
    checker: CheckerSettings | None = option(
        "Label the answers or sub-claims that provers state, for protocols with steps that have the key `states`. "
        "The label of a game is then that of the last answer or sub-claim, and the dataset needs no column `label`. "
        "null: the dataset has the labels.",
        default=None,
        example={"by": "number", "column": "target"},
    )
    ids: Literal["column", "rows"] = option(
        "`column`: ids are in the column `id`. `rows`: the file has no ids, and nip-run numbers the rows `row-1`, "
        "`row-2`, ...; the order of the file must then not change.",
        default="column",
    )
    explode: Explode | None = option(
        "Make a datapoint of each element of the lists in some columns. null: a datapoint is a row.",
        default=None,
        example={"columns": {"solutions": 1, "buggy_solutions": 0}},
    )
    split: str | None = option(
        "Use only rows whose column `split` has this value; for a dataset on the Hub, its split of this name.",
        default=None,
        example="test",
    )
    filter: str | None = option(
        "Use only rows that meet this SQL condition. It may name columns by their new names or their names in the "
        "file. It is applied after `explode`.",
        default=None,
        example="difficulty = 'hard'",
    )
    transform: tuple[TransformStep, ...] = option(
        "Steps that change texts and columns, in this order. They are applied after `filter` and `split`; `answers`, "
        "`group_by` and `unique_by` name the columns after all steps.",
        default=(),
        example=[{"step": "strip_comments", "columns": ["solution"], "language": "python"}],
    )
    group_by: str | None = option(
        "A column that has the same value in datapoints that are not independent, such as the versions of one "
        "program. They form a group, which is one unit in every confidence interval, and which `shuffle`, `limit` and "
        "`validation_share` do not divide. null: each datapoint is a group.",
        default=None,
        example="problem",
    )
    unique_by: tuple[str, ...] = option(
        "Columns that define the content of a datapoint. Of the rows with equal values in all of them (apart from case "
        "and spaces), use only the first, or none if their labels differ.",
        default=(),
        example=["claim"],
    )
    balance: Literal["none", "label"] = option(
        "`label`: use as many datapoints with label 1 as with label 0, the first of each, in pairs from one group if "
        "possible.",
        default="none",
    )
    shuffle: bool = option("Shuffle the datapoints by the spec's seed; otherwise keep the file's order.", default=False)
    limit: int | None = option(
        "Maximum number of datapoints. It is applied last and does not divide groups.",
        default=None,
        example=40,
        minimum=1,
    )
    revision: str | None = option("For the Hub: the commit to read.", default=None, example="4f2c1d0")
    limits: DatasetLimits = option("Limits for the size of the file, and for the filter.", factory=DatasetLimits)
