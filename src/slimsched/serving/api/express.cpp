// Express: a thread that reads HTTP requests whose heads are known, without Python.
//
// What a head means is decided once, in Python: a request with an unknown head is lent, with its connection, to
// the Python protocol, which knows all rules and all limits. If that request was a plain inference call, Python
// teaches its head (`learn`) and gives the connection back (`adopt`). From then on the same bytes mean the same,
// and this thread only compares them. Requests wait here until Python takes them, many at a time (`take`); Python
// copies their tensors to where servers read them (`copy`) and hands the answers in (`answer`).
//
// Everything unusual is lent: unknown heads, slow senders, slow readers, too many bytes or connections. So this
// file knows no HTTP beyond the blank line that ends a head.
//
// The thread is in `express_line.hpp` and never takes Python's lock. This file is what Python sees of it.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstdio>

#include "express_line.hpp"

namespace {

// -- the Python type

struct Group {
    std::vector<Ready> requests;
    std::shared_ptr<Known> known;
};

struct Express {
    PyObject_HEAD
    Line* line;
    std::unordered_map<uint64_t, Group>* groups;
    uint64_t next_group;
};

void express_dealloc(PyObject* self) {
    auto* own = reinterpret_cast<Express*>(self);
    Py_BEGIN_ALLOW_THREADS delete own->line;
    Py_END_ALLOW_THREADS delete own->groups;
    PyTypeObject* type = Py_TYPE(self);
    auto free_it = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
    free_it(self);
    Py_DECREF(type);
}

int express_init(PyObject* self, PyObject* args, PyObject*) {
    PyObject* files;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &files)) return -1;
    std::vector<int> listeners;
    for (Py_ssize_t at = 0; at < PyList_Size(files); ++at)
        listeners.push_back(int(PyLong_AsLong(PyList_GetItem(files, at))));
    if (PyErr_Occurred()) return -1;
    if (listeners.size() > 32) {
        PyErr_SetString(PyExc_ValueError, "at most 32 sockets");
        return -1;
    }
    auto* own = reinterpret_cast<Express*>(self);
    if (own->line) {
        PyErr_SetString(PyExc_RuntimeError, "it runs already");
        return -1;
    }
    own->line = new Line(std::move(listeners));
    own->groups = new std::unordered_map<uint64_t, Group>();
    return 0;
}

Line& line_of(PyObject* self) { return *reinterpret_cast<Express*>(self)->line; }

PyObject* tell(PyObject* self, Command command) {
    std::vector<Command> commands;
    commands.push_back(std::move(command));
    line_of(self).tell(std::move(commands));
    Py_RETURN_NONE;
}

PyObject* express_fileno(PyObject* self, PyObject*) { return PyLong_FromLong(line_of(self).notify_fd); }

PyObject* express_learn(PyObject* self, PyObject* args) {
    const char *head, *json;
    Py_ssize_t head_bytes, json_bytes;
    long long number, examples, body_bytes;
    double longest_s;
    PyObject* parts;
    if (!PyArg_ParseTuple(args, "y#y#LLdLO!", &head, &head_bytes, &json, &json_bytes, &number, &examples, &longest_s,
                          &body_bytes, &PyList_Type, &parts))
        return nullptr;
    auto known = std::make_shared<Known>();
    known->number = number;
    known->examples = examples;
    known->longest_s = longest_s;
    for (Py_ssize_t at = 0; at < PyList_Size(parts); ++at) {
        Py_ssize_t start, size;
        if (!PyArg_ParseTuple(PyList_GetItem(parts, at), "nn", &start, &size)) return nullptr;
        if (start < 0 || size < 0 || json_bytes + start + size > body_bytes) {
            PyErr_SetString(PyExc_ValueError, "a part lies outside of the body");
            return nullptr;
        }
        known->parts.push_back({size_t(start), size_t(size)});
    }
    Command command{Command::LEARN};
    command.head = std::make_shared<Head>();
    command.head->text.assign(head, size_t(head_bytes));
    command.head->body_bytes = size_t(body_bytes);
    command.head->json_bytes = size_t(json_bytes);
    command.text.assign(json, size_t(json_bytes));
    command.known = std::move(known);
    return tell(self, std::move(command));
}

PyObject* express_forget(PyObject* self, PyObject*) { return tell(self, Command{Command::FORGET}); }
PyObject* express_drain(PyObject* self, PyObject*) { return tell(self, Command{Command::DRAIN}); }

PyObject* express_stop(PyObject* self, PyObject*) {
    Line& line = line_of(self);
    Py_BEGIN_ALLOW_THREADS line.stop();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

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

PyObject* express_close_for(PyObject* self, PyObject* args) {
    long long number;
    const char* text;
    Py_ssize_t size;
    Command command{Command::CLOSE_FOR};
    if (!PyArg_ParseTuple(args, "Ldy#", &number, &command.until_s, &text, &size)) return nullptr;
    command.token = uint64_t(number);
    command.text.assign(text, size_t(size));
    return tell(self, std::move(command));
}

PyObject* express_limit(PyObject* self, PyObject* args) {
    long long connections, per_address, held_bytes;
    double idle_s;
    if (!PyArg_ParseTuple(args, "LLLd", &connections, &per_address, &held_bytes, &idle_s)) return nullptr;
    Limits& limits = line_of(self).limits;
    limits.connections = connections, limits.per_address = per_address;
    limits.held_bytes = held_bytes, limits.idle_s = idle_s;
    Py_RETURN_NONE;
}

PyObject* express_hold(PyObject* self, PyObject* args) {
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds)) return nullptr;
    line_of(self).hold_s = seconds;
    Py_RETURN_NONE;
}

PyObject* express_awake(PyObject* self, PyObject* args) {
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds)) return nullptr;
    line_of(self).awake_s = seconds;
    Py_RETURN_NONE;
}

PyObject* express_counts(PyObject* self, PyObject*) {
    Line& line = line_of(self);
    return Py_BuildValue("LL", (long long)line.open.load(), (long long)line.held_bytes.load());
}

PyObject* number_list(const std::vector<uint64_t>& numbers) {
    PyObject* list = PyList_New(Py_ssize_t(numbers.size()));
    for (size_t at = 0; list && at < numbers.size(); ++at)
        PyList_SetItem(list, Py_ssize_t(at), PyLong_FromUnsignedLongLong(numbers[at]));
    return list;
}

// Put requests that mean the same, and came soon after one another, into groups of at most so many examples.
std::vector<Group> grouped(std::vector<Ready> requests, int64_t most) {
    std::vector<Group> groups;
    std::unordered_map<Known*, size_t> last;
    for (auto& one : requests) {
        auto found = last.find(one.known.get());
        bool fits = found != last.end();
        if (fits) {
            Group& group = groups[found->second];
            fits = int64_t(group.requests.size() + 1) * one.known->examples <= most &&
                   one.arrived_s <= group.requests[0].arrived_s + one.known->longest_s;
        }
        if (!fits) {
            last[one.known.get()] = groups.size();
            groups.push_back({{}, one.known});
        }
        groups[last[one.known.get()]].requests.push_back(std::move(one));
    }
    return groups;
}

PyObject* group_entry(Express* own, Group group) {
    uint64_t number = own->next_group++;
    size_t count = group.requests.size();
    PyObject *tokens = PyList_New(Py_ssize_t(count)), *arrived = PyList_New(Py_ssize_t(count));
    if (!tokens || !arrived) return nullptr;
    for (size_t at = 0; at < count; ++at) {
        PyList_SetItem(tokens, Py_ssize_t(at), PyLong_FromUnsignedLongLong(group.requests[at].token));
        PyList_SetItem(arrived, Py_ssize_t(at), PyFloat_FromDouble(group.requests[at].arrived_s));
    }
    PyObject* entry = Py_BuildValue("KLNN", (unsigned long long)number, (long long)group.known->number, tokens, arrived);
    own->groups->emplace(number, std::move(group));
    return entry;
}

PyObject* lent_entry(const Lent& one) {
    return Py_BuildValue("iy#y#si", one.fd, one.in.data(), Py_ssize_t(one.in.size()), one.out.data(),
                         Py_ssize_t(one.out.size()), one.address.c_str(), one.why);
}

PyObject* express_take(PyObject* self, PyObject* args) {
    int with_requests;
    long long most;
    if (!PyArg_ParseTuple(args, "pL", &with_requests, &most)) return nullptr;
    auto* own = reinterpret_cast<Express*>(self);
    Published taken = own->line->take(with_requests);
    PyObject *groups = PyList_New(0), *lent = PyList_New(0), *refused = PyList_New(0);
    for (auto& group : grouped(std::move(taken.ready), most)) {
        PyObject* entry = group_entry(own, std::move(group));
        PyList_Append(groups, entry);
        Py_XDECREF(entry);
    }
    for (auto& one : taken.lent) {
        PyObject* entry = lent_entry(one);
        PyList_Append(lent, entry);
        Py_XDECREF(entry);
    }
    for (auto [number, count] : taken.refused) {
        PyObject* entry = Py_BuildValue("LL", (long long)number, (long long)count);
        PyList_Append(refused, entry);
        Py_XDECREF(entry);
    }
    return Py_BuildValue("NNNN", groups, lent, number_list(taken.left), refused);
}

Group* find_group(PyObject* self, unsigned long long number) {
    auto* groups = reinterpret_cast<Express*>(self)->groups;
    auto found = groups->find(number);
    if (found != groups->end()) return &found->second;
    PyErr_Format(PyExc_KeyError, "no group %llu", number);
    return nullptr;
}

PyObject* express_copy(PyObject* self, PyObject* args) {
    unsigned long long number, input;
    Py_buffer room;
    if (!PyArg_ParseTuple(args, "KKw*", &number, &input, &room)) return nullptr;
    Group* group = find_group(self, number);
    if (!group || input >= group->known->parts.size() ||
        size_t(room.len) != group->requests.size() * group->known->parts[input].size) {
        PyBuffer_Release(&room);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the room does not fit the inputs");
        return nullptr;
    }
    Part part = group->known->parts[input];
    Py_BEGIN_ALLOW_THREADS;
    char* to = static_cast<char*>(room.buf);
    for (auto& one : group->requests) {
        memcpy(to, one.bytes.data.get() + one.raw_at + part.start, part.size);
        to += part.size;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&room);
    Py_RETURN_NONE;
}

PyObject* express_whole(PyObject* self, PyObject* args) {
    unsigned long long number, place;
    if (!PyArg_ParseTuple(args, "KK", &number, &place)) return nullptr;
    Group* group = find_group(self, number);
    if (!group) return nullptr;
    if (place >= group->requests.size()) {
        PyErr_SetString(PyExc_IndexError, "no such request in the group");
        return nullptr;
    }
    Bytes& bytes = group->requests[place].bytes;
    return PyBytes_FromStringAndSize(bytes.data.get(), Py_ssize_t(bytes.size));
}

PyObject* express_release(PyObject* self, PyObject* args) {
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "K", &number)) return nullptr;
    reinterpret_cast<Express*>(self)->groups->erase(number);
    Py_RETURN_NONE;
}

PyObject* express_answer(PyObject* self, PyObject* args) {
    PyObject *tokens, *texts;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tokens, &PyList_Type, &texts)) return nullptr;
    Py_ssize_t count = PyList_Size(tokens);
    if (PyList_Size(texts) != count) {
        PyErr_SetString(PyExc_ValueError, "as many answers as requests");
        return nullptr;
    }
    std::vector<Command> commands;
    commands.reserve(size_t(count));
    for (Py_ssize_t at = 0; at < count; ++at) {
        char* text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(texts, at), &text, &size) < 0) return nullptr;
        Command command{Command::ANSWER};
        command.token = PyLong_AsUnsignedLongLong(PyList_GetItem(tokens, at));
        if (PyErr_Occurred()) return nullptr;
        command.text.assign(text, size_t(size));
        commands.push_back(std::move(command));
    }
    line_of(self).tell(std::move(commands));
    Py_RETURN_NONE;
}

// Rows of an output tensor of which each request has its share.
struct Rows {
    Py_buffer buffer;
    size_t row_bytes;
};

PyObject* answer_alike(PyObject* self, PyObject* args, std::vector<Rows>& rows) {
    PyObject *tokens, *starts, *network_ms, *numbers, *tensors, *row_bytes;
    const char *head, *before, *between, *after;
    Py_ssize_t head_size, before_size, between_size, after_size, examples;
    if (!PyArg_ParseTuple(args, "O!O!O!O!y#y#y#y#nO!O!", &PyList_Type, &tokens, &PyList_Type, &starts, &PyList_Type,
                          &network_ms, &PyList_Type, &numbers, &head, &head_size, &before, &before_size, &between,
                          &between_size, &after, &after_size, &examples, &PyList_Type, &tensors, &PyList_Type,
                          &row_bytes))
        return nullptr;
    Py_ssize_t count = PyList_Size(tokens);
    if (PyList_Size(starts) != count || PyList_Size(network_ms) != count || PyList_Size(numbers) != count ||
        PyList_Size(tensors) != PyList_Size(row_bytes)) {
        PyErr_SetString(PyExc_ValueError, "as many values as requests");
        return nullptr;
    }
    size_t raw_bytes = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(tensors); ++at) {
        Rows one{};
        if (PyObject_GetBuffer(PyList_GetItem(tensors, at), &one.buffer, PyBUF_SIMPLE) < 0) return nullptr;
        one.row_bytes = size_t(PyLong_AsSsize_t(PyList_GetItem(row_bytes, at)));
        raw_bytes += size_t(examples) * one.row_bytes;
        rows.push_back(one);
    }
    std::vector<Command> commands;
    commands.reserve(size_t(count));
    for (Py_ssize_t at = 0; at < count; ++at) {
        size_t start = size_t(PyLong_AsSsize_t(PyList_GetItem(starts, at)));
        char network[32], number[32], lengths[128];
        snprintf(network, sizeof network, "%.6f", PyFloat_AsDouble(PyList_GetItem(network_ms, at)));
        snprintf(number, sizeof number, "%lld", PyLong_AsLongLong(PyList_GetItem(numbers, at)));
        size_t text_bytes = size_t(before_size + between_size + after_size) + strlen(network) + strlen(number);
        snprintf(lengths, sizeof lengths, "content-length: %zu\r\ninference-header-content-length: %zu\r\n\r\n",
                 text_bytes + raw_bytes, text_bytes);
        Command command{Command::ANSWER};
        command.token = PyLong_AsUnsignedLongLong(PyList_GetItem(tokens, at));
        if (PyErr_Occurred()) return nullptr;
        std::string& text = command.text;
        text.reserve(size_t(head_size) + strlen(lengths) + text_bytes + raw_bytes);
        text.append(head, size_t(head_size)).append(lengths);
        text.append(before, size_t(before_size)).append(network).append(between, size_t(between_size));
        text.append(number).append(after, size_t(after_size));
        for (Rows& one : rows) {
            size_t from = start * one.row_bytes, size = size_t(examples) * one.row_bytes;
            if (from + size > size_t(one.buffer.len)) {
                PyErr_SetString(PyExc_ValueError, "the outputs have too few rows");
                return nullptr;
            }
            text.append(static_cast<const char*>(one.buffer.buf) + from, size);
        }
        commands.push_back(std::move(command));
    }
    line_of(self).tell(std::move(commands));
    Py_RETURN_NONE;
}

PyObject* express_answer_alike(PyObject* self, PyObject* args) {
    std::vector<Rows> rows;
    PyObject* done = answer_alike(self, args, rows);
    for (Rows& one : rows) PyBuffer_Release(&one.buffer);
    return done;
}

PyMethodDef methods[] = {
    {"fileno", express_fileno, METH_NOARGS, "A file that becomes readable when there is something to take."},
    {"learn", express_learn, METH_VARARGS, "Learn what a head and a JSON mean."},
    {"forget", express_forget, METH_NOARGS, "Forget all heads."},
    {"adopt", express_adopt, METH_VARARGS, "Take a connection back."},
    {"gone", express_gone, METH_VARARGS, "A connection that was lent is closed."},
    {"close_for", express_close_for, METH_VARARGS, "Refuse requests that mean this, until a time."},
    {"limit", express_limit, METH_VARARGS, "Set the limits."},
    {"hold", express_hold, METH_VARARGS, "Set how long requests may gather after the last were taken."},
    {"awake", express_awake, METH_VARARGS, "Set how long not to sleep while requests wait for their answers."},
    {"counts", express_counts, METH_NOARGS, "Return open connections, and bytes of requests."},
    {"take", express_take, METH_VARARGS, "Take groups of requests, lent connections, clients that left, refused."},
    {"copy", express_copy, METH_VARARGS, "Copy one input of a group's requests to where it is read."},
    {"whole", express_whole, METH_VARARGS, "Return all bytes of one request of a group."},
    {"release", express_release, METH_VARARGS, "Forget a group."},
    {"answer", express_answer, METH_VARARGS, "Write answers to requests."},
    {"answer_alike", express_answer_alike, METH_VARARGS, "Write answers that differ in two numbers and their rows."},
    {"drain", express_drain, METH_NOARGS, "Take no more requests; close connections once they are answered."},
    {"stop", express_stop, METH_NOARGS, "Close all connections and end the thread."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(express_dealloc)},
    {Py_tp_init, reinterpret_cast<void*>(express_init)},
    {Py_tp_methods, methods},
    {Py_tp_doc, const_cast<char*>("Reads requests with known heads from a listening socket, in a thread.")},
    {0, nullptr},
};

PyType_Spec spec = {"slimsched.serving.api._express.Express", sizeof(Express), 0, Py_TPFLAGS_DEFAULT, slots};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_express", "Reads HTTP requests with known heads without Python.", -1,
                      nullptr,               nullptr,    nullptr,                                                  nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__express(void) {
    PyObject* made = PyModule_Create(&module);
    if (!made) return nullptr;
    PyObject* type = PyType_FromSpec(&spec);
    if (!type || PyModule_AddObjectRef(made, "Express", type) < 0) return nullptr;
    Py_DECREF(type);
    return made;
}
