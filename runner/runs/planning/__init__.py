"""Plans runs: sample sizes, forecasts of the duration, and specs that judge the debates of a run again."""
