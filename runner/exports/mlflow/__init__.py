"""Exports complete runs to an MLflow server. Each run becomes one MLflow run, which is sent during or after the run.

`games` and `training` convert a run's folder to a plain record (`record`). `sender` sends the parts of a record that
the server lacks. `exporter` sends a run and its parts, once or until the run has ended.
"""
