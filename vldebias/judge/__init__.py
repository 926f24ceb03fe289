"""Judge what images show, with a model."""
