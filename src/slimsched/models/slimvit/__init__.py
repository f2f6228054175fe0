"""A slimmable vision transformer with a convolutional tokenizer."""
