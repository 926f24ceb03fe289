"""Define the package version, which must equal the version in pyproject.toml."""

__version__ = "0.4.0"
