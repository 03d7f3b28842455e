"""Plans runs: sample sizes, forecasts of the duration, tests of servers, and specs that judge debates again."""
