"""Search of design spaces: studies whose points are chosen, to objectives and constraints."""
