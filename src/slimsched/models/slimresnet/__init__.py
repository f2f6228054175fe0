"""SlimResNet: sliceable layers, the network, its instances and its shipped weights."""
