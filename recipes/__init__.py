"""How the models of this repository were made. Not part of the wheel."""
