"""The Schrödinger bridge: its time grid, the noise, the chains that walk it, and the losses that train it."""
