// Express for gRPC: a thread that reads calls whose heads are known, without Python.
//
// It keeps all connections, and gives other calls to Python: what has come of them as notices, and their messages
// one by one, as Python asks for them (`read`). Python answers with a framed message, or with a status as trailers
// (`answer`), or with many messages (`write`). `express_python.hpp` says how requests and answers travel.

#include "express_python.hpp"

#include "express_grpc.hpp"

namespace {

Mailbox* make_line(std::vector<int> listeners) { return new GrpcLine(std::move(listeners)); }

PyObject* tell_token(PyObject* self, PyObject* args, decltype(Command::kind) kind) {
    unsigned long long token;
    if (!PyArg_ParseTuple(args, "K", &token)) return nullptr;
    Command command{kind};
    command.token = token;
    return tell(self, std::move(command));
}

PyObject* express_read(PyObject* self, PyObject* args) { return tell_token(self, args, Command::READ); }
PyObject* express_cancel(PyObject* self, PyObject* args) { return tell_token(self, args, Command::CANCEL); }

PyObject* express_write(PyObject* self, PyObject* args) {
    unsigned long long token;
    const char* text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Ky#", &token, &text, &size)) return nullptr;
    Command command{Command::WRITE};
    command.token = token;
    command.text.assign(text, size_t(size));
    return tell(self, std::move(command));
}

PyObject* express_limit_calls(PyObject* self, PyObject* args) {
    long long message_bytes, calls, unread_bytes, header_bytes, headers;
    double sending_s, head_s;
    if (!PyArg_ParseTuple(args, "LLLLLdd", &message_bytes, &calls, &unread_bytes, &header_bytes, &headers, &sending_s,
                          &head_s))
        return nullptr;
    GrpcLimits& limits = static_cast<GrpcLine&>(line_of(self)).grpc_limits;
    limits.message_bytes = message_bytes, limits.calls = calls, limits.unread_bytes = unread_bytes;
    limits.header_bytes = header_bytes, limits.headers = headers;
    limits.sending_s = sending_s, limits.head_s = head_s;
    Py_RETURN_NONE;
}

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_express_grpc", "Reads gRPC calls with known heads without Python.", -1,
                      nullptr,               nullptr,         nullptr,                                             nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__express_grpc(void) {
    return make_module(module, "slimsched.serving.api.express._express_grpc.Express",
                       {{"read", express_read, METH_VARARGS, "Ask for the next message of a call."},
                        {"write", express_write, METH_VARARGS, "Send a message to a call, before its answer."},
                        {"cancel", express_cancel, METH_VARARGS, "End a call without an answer."},
                        {"limit_calls", express_limit_calls, METH_VARARGS, "Set the limits of calls."}});
}
