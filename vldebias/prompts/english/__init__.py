"""Read an English prompt: its words, persons, names, facts and groups."""
