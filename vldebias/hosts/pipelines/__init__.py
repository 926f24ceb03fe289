"""Hosts of diffusers: how the prompt comes to the text encoders, read from the source."""
