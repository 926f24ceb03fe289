"""Predict who will appear in images from prompts alone, and record who does appear."""
