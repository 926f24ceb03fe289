"""Compute shares of groups from labels of images, by judges, people or a table."""
