-- The games with different verdicts of two runs on the same datapoint.
--
-- Datapoints are matched by id, label and content, games by their repeat and what their block exchanges (stances, seats).
-- `nip-run show RUN GAME` prints a transcript.
--
-- $run_a RUN: the first run
-- $run_b RUN: the second run
--
-- Columns: y (the label), verdict_a, verdict_b, change (from run_a to run_b: gained, lost, or neither is right),
-- game_a, game_b (rollout ids).
WITH games AS (
    SELECT
        r.run_id, r.rollout_id, r.datapoint_id, r.repeat, r.y, r.correct AS hit, d.content_sha256,
        r.swapped, r.stances_exchanged, CASE WHEN u.spec ->> '$.stances' = 'both' THEN r.stance END AS stance,
        CASE r.decision WHEN 0 THEN 'reject' WHEN 1 THEN 'accept' ELSE 'none' END AS verdict
    FROM rollouts r
    JOIN runs u USING (run_id)
    LEFT JOIN datapoints d USING (run_id, datapoint_id)
    WHERE r.outcome <> 'transport_failed'
)
SELECT
    a.datapoint_id, a.repeat, a.y, a.verdict AS verdict_a, b.verdict AS verdict_b,
    CASE WHEN b.hit THEN 'gained' WHEN a.hit THEN 'lost' ELSE 'neither is right' END AS change,
    a.rollout_id AS game_a, b.rollout_id AS game_b
FROM games a
JOIN games b ON a.datapoint_id = b.datapoint_id AND a.repeat = b.repeat AND a.y = b.y
    AND a.content_sha256 IS NOT DISTINCT FROM b.content_sha256
    AND coalesce(a.stance = b.stance, true) AND coalesce(a.swapped = b.swapped, true)
    AND coalesce(a.stances_exchanged = b.stances_exchanged, true)
WHERE a.run_id = $run_a AND b.run_id = $run_b AND a.verdict <> b.verdict
ORDER BY change, a.datapoint_id, a.repeat
