"""Compile programs for devices that are not present."""
