"""Judge what an image shows: by a model, or by people who said it."""
