"""Compile programs for devices that are not present, and explain the compiled text."""
