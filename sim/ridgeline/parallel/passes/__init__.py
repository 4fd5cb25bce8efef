"""Graph passes: what a software stack does to the training graph of one device."""
