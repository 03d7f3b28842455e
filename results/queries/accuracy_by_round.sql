-- Accuracy by the number of rounds of a game: are verdicts after longer conversations better?
--
-- The verifier chooses when to stop, so long games may be about other datapoints than short games.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: rounds (number of rounds played), games, decided (games with a verdict), accuracy (a game without a verdict
-- counts as wrong), accept (share of games that end in accept).
SELECT
    run_id, rounds, count(*) AS games, count(*) FILTER (outcome = 'decided') AS decided,
    avg(correct::INTEGER) AS accuracy, avg((decision = 1)::INTEGER) AS accept
FROM rollouts
WHERE outcome <> 'transport_failed' AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
GROUP BY run_id, rounds
ORDER BY run_id, rounds
