"""Write, show and compare a `Result`: table, conclusions, text, page, gate."""
