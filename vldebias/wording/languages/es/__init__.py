"""Spanish grammar and word lists."""
