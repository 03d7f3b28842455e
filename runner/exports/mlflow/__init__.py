"""Runs in full on an MLflow server: each is one MLflow run, sent while it plays or afterwards, each thing once.

`games` and `training` turn a run's folder into plain records (`record`), `sending` has a server hold what it lacks of
them, and `following` does so for a run and its parts, once or until it has ended.
"""
