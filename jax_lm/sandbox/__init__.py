"""The package `untrusted` under its name in this library: run programs that a model has written."""

from untrusted import Case, Limits, Local, Program, run

__all__ = ["Case", "Limits", "Local", "Program", "run"]
