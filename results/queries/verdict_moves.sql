-- Verdicts by the round at which a debate was judged, for runs of `nip-run rejudge --verdict each`.
--
-- A debate counts in each round that was judged, so later rounds have only longer debates, about other datapoints.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: round (the judge has read all rounds before), verdicts, none (no verdict), accept (share), right (share; no
-- verdict counts as wrong), changed (verdicts that differ from the previous one, if both are decided), gained (changes
-- from wrong to right).
WITH judged AS (
    SELECT run_id, rollout_id, y, unnest(from_json(verdicts, '[{"round": "BIGINT", "decision": "BIGINT"}]')) AS verdict
    FROM rollouts
    WHERE verdicts IS NOT NULL AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
), moves AS (
    SELECT
        run_id, verdict.round AS round, verdict.decision AS decision, y,
        lag(verdict.decision) OVER (PARTITION BY run_id, rollout_id ORDER BY verdict.round) AS before
    FROM judged
)
SELECT
    run_id, round, count(*) AS verdicts, count(*) FILTER (decision = 2) AS none, avg((decision = 1)::INTEGER) AS accept,
    avg((decision = y)::INTEGER) AS right, count(*) FILTER (decision < 2 AND before = 1 - decision) AS changed,
    count(*) FILTER (decision = y AND before = 1 - decision) AS gained
FROM moves
GROUP BY run_id, round
ORDER BY run_id, round
