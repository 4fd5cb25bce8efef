"""Many simulations: points, sweeps, comparison with published measurements."""
