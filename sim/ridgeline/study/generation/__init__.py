"""Generation of tokens: prices of its steps, room of its cache, and runs of continuous batching."""
