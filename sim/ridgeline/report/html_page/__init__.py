"""Reports: one HTML file with figures, tables and their data, which needs no network."""
