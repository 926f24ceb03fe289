"""Serve `vldebias demo`: generation, search and classification before and after mitigation.

Images without and with a mitigation start from the same noise.
"""
