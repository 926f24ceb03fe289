"""Russian grammar and word lists."""
