// Express: a thread that reads HTTP requests whose heads are known, without Python.
//
// What a head means is decided once, in Python: a request with an unknown head is lent, with its connection, to
// the Python protocol, which knows all rules and all limits. If that request was a plain inference call, Python
// teaches its head (`learn`) and gives the connection back (`adopt`). From then on the same bytes mean the same,
// and this thread only compares them. `express_python.hpp` says how requests and answers travel.

#include "express_python.hpp"

#include "express_http.hpp"

namespace {

Mailbox* make_line(std::vector<int> listeners) { return new HttpLine(std::move(listeners)); }

PyObject* express_adopt(PyObject* self, PyObject* args) {
    Command command{Command::ADOPT};
    const char* address;
    if (!PyArg_ParseTuple(args, "is", &command.fd, &address)) return nullptr;
    command.text = address;
    return tell(self, std::move(command));
}

PyObject* express_gone(PyObject* self, PyObject* args) {
    const char* address;
    if (!PyArg_ParseTuple(args, "s", &address)) return nullptr;
    Command command{Command::GONE};
    command.text = address;
    return tell(self, std::move(command));
}

PyObject* express_full(PyObject* self, PyObject* args) {
    Command command{Command::FULL};
    int why;
    const char* text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iy#", &why, &text, &size)) return nullptr;
    if (why < 1 || why > 2) {
        PyErr_SetString(PyExc_ValueError, "1: connections in all; 2: from one address");
        return nullptr;
    }
    command.token = uint64_t(why);
    command.text.assign(text, size_t(size));
    return tell(self, std::move(command));
}

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_express", "Reads HTTP requests with known heads without Python.", -1,
                      nullptr,               nullptr,    nullptr,                                                  nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__express(void) {
    return make_module(module, "slimsched.serving.api.express._express.Express",
                       {{"adopt", express_adopt, METH_VARARGS, "Take a connection back."},
                        {"gone", express_gone, METH_VARARGS, "A connection that was lent is closed."},
                        {"full", express_full, METH_VARARGS, "Set what a connection over a limit is told."}});
}
