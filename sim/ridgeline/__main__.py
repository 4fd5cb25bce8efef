"""``python -m ridgeline``."""

from ridgeline.cli import main

main()
