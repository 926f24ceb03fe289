"""German grammar and word lists."""
