"""Measure arrays: rows with intervals out, and how they are written, shown and compared."""
