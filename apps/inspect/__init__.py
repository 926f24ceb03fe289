"""Measure who appears in images, as a task of inspect-ai, and create records from its logs."""
