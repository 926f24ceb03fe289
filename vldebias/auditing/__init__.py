"""Predict from prompts alone who will appear, and measure how a prompt rewriter leans.

The package is not called `audit`: a submodule of that name would hide `vldebias.audit`.
"""
