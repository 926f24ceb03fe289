"""Read English prompts and write values into them."""
