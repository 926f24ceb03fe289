"""Japanese grammar and word lists."""
