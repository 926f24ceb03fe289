"""Measure shares of values among labelled images, corrected with human labels."""
