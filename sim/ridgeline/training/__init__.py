"""Whole training runs: many steps to a target, with what interrupts, slows and feeds them."""
