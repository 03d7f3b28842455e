-- Is it the seat that wins, its stance, or who sits there? Verdicts of blocks, by what is exchanged in them.
--
-- Of runs with `stances: both` between opposed provers, or `seats: swap`. Where seats decide, `accept` moves
-- with `stances_exchanged`; where the judge leans to one verdict, it does not. What players do moves with `swapped`.
--
-- $run RUN = NULL: only of this run; default: of all
--
-- Columns: stances_exchanged, swapped (NULL: not exchanged in this run), y (the label), games, accept and none (shares
-- of the verdicts), accuracy; of the whole run position_bias (0: no seat is favoured, 1: the first always wins, -1: the
-- other one; NULL where seat and stance are one, for want of `stances: both`) with its interval bias_low and bias_high.
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
