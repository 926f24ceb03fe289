"""Shared helpers for files, tables, names, options, progress bars and more."""
