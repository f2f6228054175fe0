"""Messages of the Open Inference Protocol.

`inference_pb2.py` is generated. After a change of `inference.proto`, run this in this folder:

    protoc --python_out=. inference.proto

Then put the one edited line back: DESCRIPTOR uses a descriptor pool of its own, because tritonclient
registers the same names in the default pool. Leave out the block under `if not _USE_C_DESCRIPTORS`: its
offsets are for files that copy descriptors into the default pool of protobuf's Python implementation.
"""
