"""The networks: sliceable layers, SlimResNet, training, evaluation."""
