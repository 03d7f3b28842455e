"""Write dataset files to a folder and load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.base.errors import SpecError
from runner.base.problems import Place
from runner.spec.datasets.loader import Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings

A = {"id": "a", "label": 0, "text": "first"}
B = {"id": "b", "label": 1, "text": "second"}


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def load(
    folder: Path, content: str | bytes | None = None, name: str = "d.jsonl", seed: int = 0, **settings: Any
) -> Dataset:
    path = folder / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_dataset(DatasetSettings(path=name, **settings), path, seed, Place)


def read_load_error(folder: Path, content: str | bytes | None = None, name: str = "d.jsonl", **settings: Any) -> str:
    """Return the messages of the error that loading this file raises, each after the key of its setting."""
    with pytest.raises(SpecError) as raised:
        load(folder, content, name, **settings)
    return "\n".join(f"{p.place.file}: {p.message}" for p in raised.value.problems)


def datapoint_ids(dataset: Dataset) -> list[str]:
    return [point.id for point in dataset.datapoints]


def write_parquet(folder: Path, select: str, name: str = "d.parquet") -> None:
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({select}) TO '{folder / name}' (FORMAT parquet)")
