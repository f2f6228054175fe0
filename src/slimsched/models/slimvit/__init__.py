"""SlimViT: a slimmable vision transformer with a convolutional tokenizer."""
