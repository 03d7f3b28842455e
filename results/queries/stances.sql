-- Accuracy by the stance that the provers argue for: is the verifier persuaded, or does it see?
--
-- For protocols whose provers have one stance in a game: the verdict that they argue for, 0 or 1. Games without one are
-- left out.
--
-- $run RUN = NULL: only of this run; default: of all
--
-- Columns: stance, y (the label; equal to the stance: the provers argue for the truth), games, accuracy, persuaded (the
-- share of verdicts that are the stance).
SELECT
    run_id, stance, y, count(*) AS games, avg(correct::INTEGER) AS accuracy,
    avg((decision = stance)::INTEGER) AS persuaded
FROM rollouts
WHERE stance IS NOT NULL AND outcome <> 'transport_failed' AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
GROUP BY run_id, stance, y
ORDER BY run_id, stance, y
