"""Published results of whole runs, computed anew; `study.reproduce` finds them by name."""
