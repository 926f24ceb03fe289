"""Reproduce the tables in the paper, and compare them with the published values."""
