"""Trainable translators: SheafStain and its rivals, all under one protocol, one trainer, one translator, one suite."""
