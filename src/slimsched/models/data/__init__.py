"""Data sets: CIFAR-100 and folders of images."""
