"""SlimResNet: a slimmable residual network, its layers, fused kernels and trained weights."""
