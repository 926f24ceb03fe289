"""Support open_clip and transformers models: text towers, image encoders and merged weights."""
