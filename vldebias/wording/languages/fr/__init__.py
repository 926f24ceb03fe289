"""French grammar and word lists."""
