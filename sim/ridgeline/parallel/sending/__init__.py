"""What is sent between devices, over which links, and what it costs there."""
