"""Imported first by processes of a server: what computes in several threads has one in them, and memory for one."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
