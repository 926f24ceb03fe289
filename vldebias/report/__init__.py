"""Present and compare results: tables, conclusions, text, pages and gates."""
