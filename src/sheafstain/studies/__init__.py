"""The paper's experiments beyond its metric tables, one command each. They read images and know nothing of models."""
