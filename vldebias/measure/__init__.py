"""Compute metrics and their intervals from arrays."""
