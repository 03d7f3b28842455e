-- Verdicts by label, for each value of a dataset column: where is the verifier wrong?
--
-- $run RUN: the run
-- $by COLUMN = NULL: a dataset column, such as difficulty; default: all datapoints together
--
-- Columns: slice (the column's value), y (1: accept is right), games, accept, reject, none (numbers of verdicts),
-- accuracy.
SELECT
    CASE WHEN $by::VARCHAR IS NULL THEN 'all' ELSE d.columns ->> $by::VARCHAR END AS slice, r.y, count(*) AS games,
    count(*) FILTER (r.decision = 1) AS accept, count(*) FILTER (r.decision = 0) AS reject,
    count(*) FILTER (r.decision = 2) AS none, avg(r.correct::INTEGER) AS accuracy
FROM rollouts r
LEFT JOIN datapoints d USING (run_id, datapoint_id)
WHERE r.run_id = $run AND r.outcome <> 'transport_failed'
GROUP BY slice, r.y
ORDER BY slice, r.y
