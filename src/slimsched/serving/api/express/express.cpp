// The compiled line of HTTP as a Python module. `__init__.py` says what it reads itself and what it leaves to Python.

#include "express_python.hpp"

#include "express_http.hpp"

namespace {

Mailbox* make_line(std::vector<int> listeners) { return new HttpLine(std::move(listeners)); }

}  // namespace

PyMODINIT_FUNC PyInit__express(void) {
    return make_module("_express", "slimsched.serving.api.express._express.Express",
                       "Reads HTTP requests with known heads without Python.");
}
