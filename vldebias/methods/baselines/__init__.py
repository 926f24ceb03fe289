"""Methods of others, as baselines: each is its formula, its source and how it reads a problem."""
