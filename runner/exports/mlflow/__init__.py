"""Exports complete runs to an MLflow server. Each run becomes one MLflow run, which is sent during or after the run.

In this package, the modules `games` and `training` convert a run's folder to the plain values of the module `record`.
The module `sender` sends the values that the server lacks. The module `exporter` sends a run and its parts, once or
until the run has ended.
"""
