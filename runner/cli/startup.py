"""Process settings that make commands start faster and use fewer threads."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

GC_THRESHOLD = 10_000
"""Number of new objects that triggers a garbage collection. The default of 700 slows down imports."""

_THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"


def reduce_garbage_collection() -> None:
    """Run the garbage collector less often."""
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def load_scipy_with_one_thread() -> None:
    """Load SciPy before the games start, so that an import error costs no money. See `one_blas_thread`.

    The package `scipy.special` takes 18 MB and 0.15 s to load, but most runs need only its extension module, which may
    need one of `scipy.linalg`. Temporary packages in their place let Python import these modules alone; until they are
    removed, no other thread may import SciPy.
    """
    from runner.statistics.intervals import SPECIAL_FUNCTIONS, load_scipy

    with one_blas_thread():
        if "scipy.special" not in sys.modules:
            # If another version of SciPy has no such module, `load_scipy` loads the complete package.
            with _empty_package("scipy.special"), _empty_package("scipy.linalg"), suppress(ImportError):
                import_module(SPECIAL_FUNCTIONS)
        load_scipy()


@contextmanager
def _empty_package(name: str) -> Iterator[None]:
    """Let Python import modules of a package without the package, unless it is loaded."""
    spec = find_spec(name)
    if spec is None or name in sys.modules:
        yield
        return
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations or ())
    try:
        yield
    finally:
        del sys.modules[name]


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
