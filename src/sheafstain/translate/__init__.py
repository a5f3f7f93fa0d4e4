"""Translating images and slides of any size: decode, compute and glue at once, in memory that does not grow."""
