"""Judge what images show, with a model or with human answers."""
