"""Paired H&E and IHC images: published layouts, your own folders, phantoms."""
