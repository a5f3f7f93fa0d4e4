"""Pixels in and out: single images, whole slides, tissue."""
