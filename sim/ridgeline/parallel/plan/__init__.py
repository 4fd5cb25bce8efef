"""Plans: the fields, what they must be to each other, their text, and which device is which."""
