"""Serve `vldebias demo`: generation, search and classification before and after mitigation.

Images with and without mitigation start from the same noise.
"""
