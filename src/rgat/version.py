"""The version, alone, so that it can be read without importing torch."""

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("rgat")
    except PackageNotFoundError:
        return "0+source"


__version__ = _installed_version()
"""The version of the installed package, from its Git tag; "0+source" if the source was never installed.

Examples:
    >>> import rgat
    >>> isinstance(rgat.__version__, str)
    True
"""
