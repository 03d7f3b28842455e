"""A process that costs no more than its work: what packages do at their import, kept small for a command."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 10_000
"""Objects after which garbage is looked for, not 700: the packages that a run imports make half a million to keep."""

_THREADS = "OPENBLAS_NUM_THREADS"


def collect_seldom() -> None:
    """Collect garbage less often."""
    gc.set_threshold(YOUNG, 10, 10)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have numpy and SciPy, if imported in here, start no thread a core for linear algebra: a run has none to do.

    The variable is gone afterwards, since processes that the run starts, such as a trainer, may need the threads.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
