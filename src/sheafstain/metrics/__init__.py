"""How good a translated image is: one suite for every method, reading files alone."""
