"""Measure what an image editor changed in people: labels, and the lightness of their skin."""
