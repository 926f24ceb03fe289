"""Fitted edits of embeddings, their files, and the hub that keeps them."""
