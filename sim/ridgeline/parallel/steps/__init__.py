"""One training step as tasks of a Program: blocks of micro-batches, sums of gradients, updates."""
