"""Look up English words and the order of English adjectives."""
