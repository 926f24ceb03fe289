"""Measure the shares of values among labelled images, and correct them with human labels."""
