"""Compute metrics from arrays, as rows with intervals."""
