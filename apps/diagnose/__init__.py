"""Probe embeddings for attribute leakage, worst-performing groups and label errors."""
