-- The datapoints with the most wrong verdicts, over all finished runs.
--
-- The query leaves out copies and runs with fixed verdicts.
--
-- $benchmark BENCHMARK = NULL: only this benchmark; default: all
-- $limit NUMBER = 20: number of datapoints to list
--
-- Columns: y (the label), games, runs, accuracy, accept (share), example (rollout id of a wrong verdict).
SELECT
    u.benchmark, r.datapoint_id, r.y, count(*) AS games, count(DISTINCT r.run_id) AS runs,
    avg(r.correct::INTEGER) AS accuracy, avg((r.decision = 1)::INTEGER) AS accept,
    min(r.rollout_id) FILTER (NOT r.correct) AS example
FROM rollouts r
JOIN runs u USING (run_id)
WHERE u.kind = 'benchmark' AND u.status = 'done' AND r.correct IS NOT NULL
    AND u.fixed_verdicts IS NULL AND u.run_id NOT IN (SELECT run_id FROM copies)
    AND ($benchmark::VARCHAR IS NULL OR u.benchmark = $benchmark::VARCHAR)
GROUP BY u.benchmark, r.datapoint_id, r.y
ORDER BY accuracy, games DESC, u.benchmark, r.datapoint_id
LIMIT $limit::BIGINT
