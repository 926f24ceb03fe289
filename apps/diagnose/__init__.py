"""Probe embeddings for attribute leakage, worst-performing groups, label errors and margins."""
