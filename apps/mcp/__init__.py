"""Offer balanced prompts and audits to assistants over the Model Context Protocol."""
