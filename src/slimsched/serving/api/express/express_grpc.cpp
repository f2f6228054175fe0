// The compiled line of gRPC as a Python module. `__init__.py` says what it reads itself and what it leaves to Python.

#include "express_python.hpp"

#include "express_grpc.hpp"

namespace {

Mailbox* make_line(std::vector<int> listeners) { return new GrpcLine(std::move(listeners)); }

}  // namespace

PyMODINIT_FUNC PyInit__express_grpc(void) {
    return make_module("_express_grpc", "slimsched.serving.api.express._express_grpc.Express",
                       "Reads gRPC calls with known heads without Python.");
}
