"""Implement methods from other papers as baselines."""
