"""Hosts for open_clip and transformers: text towers, image encoders and merged weights."""
