"""Communication of a step: collectives and messages, their links and their cost."""
