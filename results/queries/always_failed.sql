-- The share of datapoints on which the verifier always fails: the second panel of the paper's main figure.
--
-- A datapoint counts if a run has at least $repeats games about it. If there are few repeats, a verifier that guesses
-- fails on some datapoints by chance: on the share (1/2)^repeats.
--
-- $repeats NUMBER = 2: minimum number of games about a datapoint
--
-- Columns: iteration (for a test of a training run), datapoints, repeats (minimum number of games about a datapoint),
-- always_failed (share) with its interval (NULL: some datapoints do not count, or the run has no such metric), the
-- share among wrong solutions (always_failed_0) and among right ones (always_failed_1), reason (why the run is
-- unranked; NULL: it is ranked).
SELECT
    u.benchmark, coalesce(u.parent_run_id, u.run_id) AS run, u.iteration, u.protocol, u.run_id,
    count(*) AS datapoints, min(p.games) AS repeats, avg((p.hits = 0)::INTEGER) AS always_failed,
    CASE WHEN count(*) = max(p.played) THEN any_value(m.ci_low) END AS ci_low,
    CASE WHEN count(*) = max(p.played) THEN any_value(m.ci_high) END AS ci_high,
    avg((p.hits = 0)::INTEGER) FILTER (p.y = 0) AS always_failed_0,
    avg((p.hits = 0)::INTEGER) FILTER (p.y = 1) AS always_failed_1,
    any_value(l.reason) AS reason
FROM (
    SELECT
        run_id, datapoint_id, y, count(*) AS games, sum(correct::INTEGER) AS hits,
        count(*) OVER (PARTITION BY run_id) AS played
    FROM rollouts WHERE correct IS NOT NULL GROUP BY run_id, datapoint_id, y
) p
JOIN runs u USING (run_id)
LEFT JOIN metrics m ON m.run_id = u.run_id AND m.agent IS NULL AND m.metric = 'always_failed'
LEFT JOIN leaderboard l ON l.run_id = u.run_id
WHERE u.kind = 'benchmark' AND u.status = 'done' AND p.games >= $repeats
GROUP BY u.benchmark, run, u.iteration, u.protocol, u.run_id
ORDER BY u.benchmark, run, u.iteration, u.run_id
