"""Layer fusion: tiles of consecutive layers computed one behind the other, on chip in between."""
