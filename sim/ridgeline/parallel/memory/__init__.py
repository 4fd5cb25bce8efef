"""What a device holds over a step, without simulating it, and what its allocator reserves."""
