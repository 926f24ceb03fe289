"""Chinese grammar and word lists."""
