"""Find people in English prompts and insert values for them."""
