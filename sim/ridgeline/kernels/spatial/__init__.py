"""Arrays of elements with registers of their own: layouts, their cycles and words, the search."""
