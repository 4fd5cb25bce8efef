"""``python -m ridgeline.cli``."""

from ridgeline.cli import main

main()
