"""Write, show and compare results: table, conclusions, text, page, gate."""
