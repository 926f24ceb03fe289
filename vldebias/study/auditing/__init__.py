"""Predict from prompts alone who will appear, and how a rewriter of prompts leans."""
