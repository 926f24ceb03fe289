"""Count who appears in images of prompts, and record who does."""
