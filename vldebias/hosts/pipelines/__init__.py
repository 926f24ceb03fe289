"""Hosts for diffusers, which infer from the source how a prompt reaches the text encoders."""
