"""Readers of launch files; every module here registers one (`registry.reader`)."""
