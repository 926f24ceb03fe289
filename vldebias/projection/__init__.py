"""Fit, apply, save and share edits of embeddings, first of all the calibrated projection."""
