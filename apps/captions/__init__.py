"""Measure which attribute values captions and answers state about images."""
