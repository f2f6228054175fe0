"""The compiled line of gRPC; `express_grpc.hpp` explains it."""

from slimsched.serving.api.express._compiled_line import CompiledLine, GrpcNotice

class Express(CompiledLine[GrpcNotice]): ...
