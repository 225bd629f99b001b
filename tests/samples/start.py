def is_even(n):
    """Whether n is even."""
