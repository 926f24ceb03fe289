"""Define the version of the package; pyproject.toml states the same one."""

__version__ = "0.4.0"
