"""Suites: which tables are measured on which data, and the run that does so."""

from vldebias.evaluation.suites.load import list_suites, load_suite
from vldebias.evaluation.suites.runner import run_suite
from vldebias.evaluation.suites.schema import Suite
from vldebias.evaluation.suites.session import Options

__all__ = ["Options", "Suite", "list_suites", "load_suite", "run_suite"]
