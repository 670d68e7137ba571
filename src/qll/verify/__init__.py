"""Complete verification: queries, provers, verdicts, certificates."""
