-- Calibration: for games with a similar P(accept), the share of right solutions.
--
-- The query leaves out runs and games without such a confidence. metrics.json has the same ten bins of equal width with
-- intervals; the table `metrics` has the Brier score, ECE and AUROC.
--
-- $kind TEXT = stated: stated (in the answer) or logprob (from the log-probabilities of the verdict)
-- $run RUN = NULL: only this run; default: all
--
-- Columns: low and high (ends of the bin; the last bin includes 1), games, confidence (mean P(accept)), right (share of
-- right solutions, equal to the confidence if it is calibrated), gap (right minus confidence).
WITH confidences AS (
    SELECT
        run_id, y,
        CASE $kind::VARCHAR
            WHEN 'stated' THEN confidence_stated WHEN 'logprob' THEN confidence_logprob
            ELSE error('kind=' || $kind::VARCHAR || ': use stated or logprob')
        END AS p
    FROM rollouts
    WHERE outcome <> 'transport_failed' AND ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
)
SELECT
    run_id, least(floor(p * 10 + 1e-9), 9) / 10 AS low, low + 0.1 AS high, count(*) AS games, avg(p) AS confidence,
    avg(y) AS right, avg(y) - avg(p) AS gap
FROM confidences
WHERE p IS NOT NULL
GROUP BY run_id, low
ORDER BY run_id, low
