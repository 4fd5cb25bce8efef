"""What a user reads: Result, manifest, tables, figures, exports. Nothing here simulates."""
