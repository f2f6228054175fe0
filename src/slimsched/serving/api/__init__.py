"""The front door: HTTP and gRPC servers for Open Inference Protocol v2, a client and a load generator."""
