"""Limit numerical libraries to one thread. A server's processes import this module before those libraries."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
