-- Accuracy by the round in which the game ended: do longer conversations end better?
--
-- A game of two rounds has ended in its second; what a long one says of a datapoint is not what a short one would have
-- said, since the verifier chooses when to stop.
--
-- $run RUN = NULL: only of this run; default: of all
--
-- Columns: rounds (played), games, decided (those with a verdict), accuracy (an undecided game is wrong), accept
-- (share that ends in accept).
SELECT
    run_id, rounds, count(*) AS games, count(*) FILTER (outcome = 'decided') AS decided,
    avg(correct::INTEGER) AS accuracy, avg((decision = 1)::INTEGER) AS accept
FROM rollouts
WHERE outcome <> 'transport_failed' AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
GROUP BY run_id, rounds
ORDER BY run_id, rounds
