"""Measure arrays: rows with intervals out."""
