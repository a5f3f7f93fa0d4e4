"""Networks: the conditioned generator, its critics, the PatchNCE heads, and the networks of pix2pix and CycleGAN."""
