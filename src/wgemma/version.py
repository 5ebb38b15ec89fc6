"""The version of this package; pyproject.toml has the same."""

__version__ = "0.1.0"
