"""Provide shared helpers for files, tables, names, options and progress bars."""
