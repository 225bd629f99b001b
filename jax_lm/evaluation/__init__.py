"""Evaluation of models on problems with executable tests, and analysis of decoding orders."""
