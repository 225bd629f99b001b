"""What XLA makes of the programs for a machine that is not here: compiled without it, and read."""
