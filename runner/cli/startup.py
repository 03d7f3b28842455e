"""Process settings that make commands start faster and use fewer threads."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 10_000
"""Number of new objects that triggers a garbage collection. The default of 700 slows down imports."""

_THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"


def reduce_garbage_collection() -> None:
    """Run the garbage collector less often."""
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def load_scipy_with_one_thread() -> None:
    """Load SciPy before the games start, so that an import error costs no money. See `one_blas_thread`."""
    from runner.statistics.intervals import load_scipy

    with one_blas_thread():
        load_scipy()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy and SciPy, if imported within this context, use one thread for linear algebra.

    A run has no large matrices. The environment variable is removed afterwards, since processes that the run starts,
    such as trainers, may need several threads.
    """
    if _THREADS_VARIABLE in os.environ:
        yield
        return
    os.environ[_THREADS_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS_VARIABLE]
