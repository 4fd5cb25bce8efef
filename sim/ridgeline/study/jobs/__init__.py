"""Jobs that share one fabric: their file, what surrounds them, and what they do to each other."""
