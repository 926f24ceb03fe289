"""Define the package version, which must equal the version in pyproject.toml."""

__version__ = "1.0.0"
