"""Lowering of traced executions: their tasks become a Program, without a Plan."""
