"""Portuguese grammar and word lists."""
