"""Procedural breast-like tissue with known truth: any size, from a seed.

No public set of H&E and IHC may be redistributed, and none shows both stains of one and the same section. A phantom may
and does. It looks like tissue and is nobody's; what is learned from it must be checked on real slides.
"""
