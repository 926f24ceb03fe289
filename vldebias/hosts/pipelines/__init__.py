"""Hosts of diffusers: how the prompt reaches the text encoders, read from the source."""
