"""Judge what an image shows, using a model or people's answers."""
