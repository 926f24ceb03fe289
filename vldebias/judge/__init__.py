"""Judge what an image shows, by a model or by people's answers."""
