"""Shares of values among labelled images, corrected by the labels of people."""
