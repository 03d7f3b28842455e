-- Does a prover win because of its seat, its stance or its model? Verdicts by what the games of a block exchange.
--
-- Only runs with `stances: both` and opposed provers, or with `seats: swap`. If the seat decides, `accept` changes with
-- `stances_exchanged`. If the judge prefers one verdict, it does not. An effect of the players changes with `swapped`.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: stances_exchanged, swapped (NULL: not exchanged in this run), y (the label), games, accept and none (shares
-- of verdicts), accuracy. For the whole run: position_bias (0: no seat has an advantage, 1: the first seat always wins,
-- -1: the second always wins; NULL: without `stances: both`, seat and stance cannot be distinguished) with its interval
-- bias_low and bias_high.
SELECT
    r.run_id, r.stances_exchanged, r.swapped, r.y, count(*) AS games, avg((r.decision = 1)::INTEGER) AS accept,
    avg((r.decision = 2)::INTEGER) AS none, avg(r.correct::INTEGER) AS accuracy,
    any_value(m.value) AS position_bias, any_value(m.ci_low) AS bias_low, any_value(m.ci_high) AS bias_high
FROM rollouts r
LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = 'position_bias'
WHERE
    (r.swapped IS NOT NULL OR r.stances_exchanged IS NOT NULL) AND r.outcome <> 'transport_failed'
    AND ($run::VARCHAR IS NULL OR r.run_id = $run::VARCHAR)
GROUP BY r.run_id, r.stances_exchanged, r.swapped, r.y
ORDER BY r.run_id, r.stances_exchanged, r.swapped, r.y
