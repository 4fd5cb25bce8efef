"""Figures, by name; each takes what it draws and axes, and returns the axes."""
