"""Generate images for a prompt with and without methods, from the same noise."""
