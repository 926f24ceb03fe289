"""Italian grammar and word lists."""
