"""Korean grammar and word lists."""
