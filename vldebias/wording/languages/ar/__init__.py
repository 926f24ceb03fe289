"""Arabic grammar and word lists."""
