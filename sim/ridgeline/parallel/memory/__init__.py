"""Memory of a step without simulating it, and what the allocator reserves."""
