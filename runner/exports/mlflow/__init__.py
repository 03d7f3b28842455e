"""Export complete runs to an MLflow server: each becomes one MLflow run, sent while it plays or afterwards.

`games` and `training` convert a run's folder to a plain record (`record`). `sender` sends the parts of a record that
the server lacks. `exporter` does so for a run and its parts, once or until the run has ended.
"""
