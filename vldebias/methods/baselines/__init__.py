"""Implement methods of other papers as baselines."""
