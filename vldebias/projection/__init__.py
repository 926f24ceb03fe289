"""Fit, apply, save and share embedding edits, in particular the calibrated projection."""
