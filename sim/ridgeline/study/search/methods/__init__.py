"""Search methods, a file each."""
