"""Present, compare and check results as tables, sentences and HTML pages."""
