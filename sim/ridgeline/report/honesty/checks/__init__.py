"""The checks, a file for each family of rules."""
