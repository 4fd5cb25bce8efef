"""Honesty checks: which of the known ways to mislead a comparison, a table or a figure uses."""
