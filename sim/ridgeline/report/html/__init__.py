"""Results, models and machines as HTML for notebooks."""
