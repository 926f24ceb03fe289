"""Train classifiers on labelled images, as baselines for methods that need no labels."""
