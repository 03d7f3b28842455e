-- Accuracy by the stance that the provers argue for: does the verifier follow the provers or the truth?
--
-- Only protocols whose provers all argue for the same verdict, 0 or 1. The query leaves out games without a stance.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: stance, y (the label; equal to the stance if the provers argue for the truth), games, accuracy, persuaded
-- (share of verdicts that equal the stance).
SELECT
    run_id, stance, y, count(*) AS games, avg(correct::INTEGER) AS accuracy,
    avg((decision = stance)::INTEGER) AS persuaded
FROM rollouts
WHERE stance IS NOT NULL AND outcome <> 'transport_failed' AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
GROUP BY run_id, stance, y
ORDER BY run_id, stance, y
