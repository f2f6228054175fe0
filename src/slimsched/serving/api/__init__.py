"""The front door: Open Inference Protocol v2 over HTTP and gRPC, client, load generator."""
