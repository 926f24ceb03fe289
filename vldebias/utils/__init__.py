"""Provide shared helpers: files, text tables, names, options, progress."""
