"""Predict who will appear in images from prompts alone, and audit rewriters and captions.

The package is not called `audit`, because a submodule with that name would hide `vldebias.audit`.
"""
