// What Python sees of a line: the functions that lines of all protocols have.
//
// Requests wait in the thread until Python takes them, many at a time (`take`); Python copies their tensors to
// where servers read them (`copy`) and hands the answers in (`answer`, `answer_alike`). The thread never takes
// Python's lock.

#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <deque>

#include "express_mailbox.hpp"

namespace {

// Each module has one kind of line, and says how to make it.
Mailbox* make_line(std::vector<int> listeners);

struct Group {
    std::vector<Ready> requests;
    std::shared_ptr<Known> known;
};

struct Express {
    PyObject_HEAD
    Mailbox* line;
    std::unordered_map<uint64_t, Group>* groups;
    uint64_t next_group;
};

void express_dealloc(PyObject* self) {
    auto* own = reinterpret_cast<Express*>(self);
    if (own->line) {
        Py_BEGIN_ALLOW_THREADS own->line->stop();
        Py_END_ALLOW_THREADS
    }
    delete own->line;
    delete own->groups;
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
    own->groups = new std::unordered_map<uint64_t, Group>();
    own->line = make_line(std::move(listeners));
    own->line->start();
    return 0;
}

// Make a list of what `entry` makes of each thing; nothing, with an error, if one of them cannot be made.
template <class Things, class Entry>
PyObject* list_of(Things&& things, Entry entry) {
    PyObject* list = PyList_New(0);
    for (auto& one : things) {
        PyObject* made = list ? entry(one) : nullptr;
        if (!made || PyList_Append(list, made) < 0) Py_CLEAR(list);
        Py_XDECREF(made);
    }
    return list;
}

Mailbox& line_of(PyObject* self) { return *reinterpret_cast<Express*>(self)->line; }

PyObject* express_fileno(PyObject* self, PyObject*) { return PyLong_FromLong(line_of(self).notify_fd); }

// Read the places of the tensors, and what stands between them; false if there is an error.
bool read_layout(Known& known, PyObject* parts, PyObject* fixed, size_t room) {
    for (Py_ssize_t at = 0; at < PyList_Size(parts); ++at) {
        Py_ssize_t start, size;
        if (!PyArg_ParseTuple(PyList_GetItem(parts, at), "nn", &start, &size)) return false;
        known.parts.push_back({size_t(start), size_t(size)});
    }
    for (Py_ssize_t at = 0; at < PyList_Size(fixed); ++at) {
        Py_ssize_t start, size;
        const char* bytes;
        if (!PyArg_ParseTuple(PyList_GetItem(fixed, at), "ny#", &start, &bytes, &size)) return false;
        known.fixed.push_back({size_t(start), std::string(bytes, size_t(size))});
    }
    bool fits = true;
    for (auto [start, size] : known.parts) fits = fits && start <= room && size <= room - start;
    for (const auto& one : known.fixed) fits = fits && one.start <= room && one.bytes.size() <= room - one.start;
    if (!fits) PyErr_SetString(PyExc_ValueError, "a part lies outside of the body");
    return fits;
}

PyObject* express_learn(PyObject* self, PyObject* args) {
    const char *head, *text;
    Py_ssize_t head_bytes, text_bytes;
    long long number, examples, body_bytes;
    double longest_s;
    PyObject *parts, *fixed;
    if (!PyArg_ParseTuple(args, "y#y#LLdLO!O!", &head, &head_bytes, &text, &text_bytes, &number, &examples,
                          &longest_s, &body_bytes, &PyList_Type, &parts, &PyList_Type, &fixed))
        return nullptr;
    if (body_bytes < text_bytes) {
        PyErr_SetString(PyExc_ValueError, "the text is longer than the body");
        return nullptr;
    }
    Command command{Command::LEARN};
    command.known = std::make_shared<Known>();
    command.known->number = number;
    command.known->examples = examples;
    command.known->longest_s = longest_s;
    if (!read_layout(*command.known, parts, fixed, size_t(body_bytes - text_bytes))) return nullptr;
    command.head.assign(head, size_t(head_bytes));
    command.text.assign(text, size_t(text_bytes));
    command.bytes = size_t(body_bytes);
    line_of(self).tell(std::move(command));
    Py_RETURN_NONE;
}

// What a line can be told in few words; what is nothing to a line of its protocol it ignores.
constexpr std::pair<std::string_view, Command::Kind> WORDS[] = {
    {"forget", Command::FORGET}, {"close_for", Command::CLOSE_FOR}, {"proxy", Command::PROXY},
    {"limits", Command::LIMITS}, {"drain", Command::DRAIN},         {"adopt", Command::ADOPT},
    {"gone", Command::GONE},     {"full", Command::FULL},           {"read", Command::READ},
    {"write", Command::WRITE},   {"cancel", Command::CANCEL},
};

PyObject* express_tell(PyObject* self, PyObject* args) {
    const char *word, *text = "";
    unsigned long long token = 0;
    Py_ssize_t size = 0;
    Command command{};
    if (!PyArg_ParseTuple(args, "s|Ky#d", &word, &token, &text, &size, &command.until_s)) return nullptr;
    command.token = token;
    command.text.assign(text, size_t(size));
    for (auto [known, kind] : WORDS)
        if (known == word) {
            command.kind = kind;
            line_of(self).tell(std::move(command));
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "a line cannot be told '%s'", word);
}

constexpr std::pair<std::string_view, std::atomic<double> Settings::*> SETTINGS[] = {
    {"connections", &Settings::connections},
    {"connections_per_address", &Settings::connections_per_address},
    {"held_bytes", &Settings::held_bytes},
    {"idle_s", &Settings::idle_s},
    {"calls", &Settings::calls},
    {"resets_per_s", &Settings::resets_per_s},
    {"message_bytes", &Settings::message_bytes},
    {"unread_bytes", &Settings::unread_bytes},
    {"head_bytes", &Settings::head_bytes},
    {"headers", &Settings::headers},
    {"head_s", &Settings::head_s},
    {"sending_s", &Settings::sending_s},
    {"hold_s", &Settings::hold_s},
    {"awake_s", &Settings::awake_s},
};

PyObject* express_set(PyObject* self, PyObject* args) {
    const char* name;
    double value;
    if (!PyArg_ParseTuple(args, "sd", &name, &value)) return nullptr;
    for (auto [known, setting] : SETTINGS)
        if (known == name) {
            line_of(self).settings.*setting = value;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "a line has no setting '%s'", name);
}

PyObject* express_stop(PyObject* self, PyObject*) {
    Mailbox& line = line_of(self);
    Py_BEGIN_ALLOW_THREADS line.stop();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject* express_cuts(PyObject* self, PyObject*) {
    return list_of(line_of(self).cuts, [](const auto& count) { return PyLong_FromLongLong(count.load()); });
}

PyObject* express_counts(PyObject* self, PyObject*) {
    Mailbox& line = line_of(self);
    return Py_BuildValue("LL", (long long)line.open.load(), (long long)line.held_bytes.load());
}

// Put requests that mean the same, and came soon after one another, into groups of at most so many examples.
std::vector<Group> grouped(std::vector<Ready> requests, int64_t most) {
    std::vector<Group> groups;
    std::unordered_map<Known*, size_t> last;
    auto fits = [&](const Group& group, const Ready& one) {
        return int64_t(group.requests.size() + 1) * one.known->examples <= most &&
               one.arrived_s <= group.requests[0].arrived_s + one.known->longest_s;
    };
    for (auto& one : requests) {
        auto [found, is_first] = last.try_emplace(one.known.get(), groups.size());
        if (is_first || !fits(groups[found->second], one)) {
            found->second = groups.size();
            groups.push_back({{}, one.known});
        }
        groups[found->second].requests.push_back(std::move(one));
    }
    return groups;
}

PyObject* number_entry(uint64_t number) { return PyLong_FromUnsignedLongLong(number); }

PyObject* group_entry(Express* own, Group group) {
    uint64_t number = own->next_group++;
    PyObject* tokens = list_of(group.requests, [](const Ready& one) { return number_entry(one.token); });
    PyObject* arrived = list_of(group.requests, [](const Ready& one) { return PyFloat_FromDouble(one.arrived_s); });
    PyObject* entry = Py_BuildValue("KLNN", (unsigned long long)number, (long long)group.known->number, tokens, arrived);
    own->groups->emplace(number, std::move(group));
    return entry;
}

PyObject* notice_entry(const Notice& one) {
    return Py_BuildValue(one.kind ? "Ky#y#si" : "Ky#y#s", (unsigned long long)one.token, one.first.data(),
                         Py_ssize_t(one.first.size()), one.second.data(), Py_ssize_t(one.second.size()),
                         one.address.c_str(), one.kind);
}

PyObject* express_take(PyObject* self, PyObject* args) {
    int with_requests;
    long long most;
    if (!PyArg_ParseTuple(args, "pL", &with_requests, &most)) return nullptr;
    auto* own = reinterpret_cast<Express*>(self);
    Published taken = own->line->take(with_requests);
    PyObject* groups = list_of(grouped(std::move(taken.ready), most),
                               [own](Group& one) { return group_entry(own, std::move(one)); });
    PyObject* notices = list_of(taken.notices, notice_entry);
    PyObject* left = list_of(taken.left, number_entry);
    PyObject* refused = list_of(taken.refused, [](const auto& one) {
        return Py_BuildValue("LL", (long long)one.first, (long long)one.second);
    });
    return Py_BuildValue("NNNN", groups, notices, left, refused);
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
    const Ready& one = group->requests[place];
    std::string whole = one.head;
    whole.append(one.bytes.data.get(), one.bytes.size);
    return PyBytes_FromStringAndSize(whole.data(), Py_ssize_t(whole.size()));
}

PyObject* express_release(PyObject* self, PyObject* args) {
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "K", &number)) return nullptr;
    reinterpret_cast<Express*>(self)->groups->erase(number);
    Py_RETURN_NONE;
}

PyObject* express_answer(PyObject* self, PyObject* args) {
    PyObject* tokens;
    const char* text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "O!y#", &PyList_Type, &tokens, &text, &size)) return nullptr;
    std::vector<Command> commands;
    for (Py_ssize_t at = 0; at < PyList_Size(tokens); ++at) {
        Command command{Command::ANSWER};
        command.token = PyLong_AsUnsignedLongLong(PyList_GetItem(tokens, at));
        if (PyErr_Occurred()) return nullptr;
        command.text.assign(text, size_t(size));
        commands.push_back(std::move(command));
    }
    line_of(self).tell(std::move(commands));
    Py_RETURN_NONE;
}

// Rows of an output tensor of which each request has its share, and what is written before each share.
struct Rows {
    Py_buffer buffer{};
    size_t row_bytes = 0;
    std::string before;

    Rows() = default;
    Rows(const Rows&) = delete;
    ~Rows() { PyBuffer_Release(&buffer); }
};

bool read_rows(std::deque<Rows>& rows, PyObject* tensors) {
    for (Py_ssize_t at = 0; at < PyList_Size(tensors); ++at) {
        PyObject* tensor;
        const char* before;
        Py_ssize_t row_bytes, before_bytes;
        if (!PyArg_ParseTuple(PyList_GetItem(tensors, at), "Ony#", &tensor, &row_bytes, &before, &before_bytes))
            return false;
        Rows& one = rows.emplace_back();
        one.row_bytes = size_t(row_bytes), one.before.assign(before, size_t(before_bytes));
        if (PyObject_GetBuffer(tensor, &one.buffer, PyBUF_SIMPLE) < 0) return false;
    }
    return true;
}

PyObject* express_answer_alike(PyObject* self, PyObject* args) {
    PyObject *tokens, *starts, *network_ms, *numbers, *tensors;
    const char *before, *between, *after;
    Py_ssize_t before_size, between_size, after_size, examples;
    if (!PyArg_ParseTuple(args, "O!O!O!O!(y#y#y#)nO!", &PyList_Type, &tokens, &PyList_Type, &starts, &PyList_Type,
                          &network_ms, &PyList_Type, &numbers, &before, &before_size, &between, &between_size, &after,
                          &after_size, &examples, &PyList_Type, &tensors))
        return nullptr;
    Py_ssize_t count = PyList_Size(tokens);
    if (PyList_Size(starts) != count || PyList_Size(network_ms) != count || PyList_Size(numbers) != count) {
        PyErr_SetString(PyExc_ValueError, "as many values as requests");
        return nullptr;
    }
    std::deque<Rows> rows;
    if (!read_rows(rows, tensors)) return nullptr;
    size_t raw_bytes = 0;
    for (const Rows& one : rows) raw_bytes += one.before.size() + size_t(examples) * one.row_bytes;
    Mailbox& line = line_of(self);
    std::vector<Command> commands;
    commands.reserve(size_t(count));
    for (Py_ssize_t at = 0; at < count; ++at) {
        size_t start = size_t(PyLong_AsSsize_t(PyList_GetItem(starts, at)));
        std::string network = line.network_text(PyFloat_AsDouble(PyList_GetItem(network_ms, at)));
        std::string number = line.number_text(PyLong_AsLongLong(PyList_GetItem(numbers, at)));
        size_t text_bytes = size_t(before_size + between_size + after_size) + network.size() + number.size();
        Command command{Command::ANSWER};
        command.token = PyLong_AsUnsignedLongLong(PyList_GetItem(tokens, at));
        if (PyErr_Occurred()) return nullptr;
        std::string opening = line.opening(text_bytes, raw_bytes);
        std::string& text = command.text;
        text.reserve(opening.size() + text_bytes + raw_bytes);
        text.append(opening).append(before, size_t(before_size)).append(network);
        text.append(between, size_t(between_size)).append(number).append(after, size_t(after_size));
        for (const Rows& one : rows) {
            size_t from = start * one.row_bytes, size = size_t(examples) * one.row_bytes;
            if (from + size > size_t(one.buffer.len)) {
                PyErr_SetString(PyExc_ValueError, "the outputs have too few rows");
                return nullptr;
            }
            text.append(one.before).append(static_cast<const char*>(one.buffer.buf) + from, size);
        }
        commands.push_back(std::move(command));
    }
    line.tell(std::move(commands));
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"fileno", express_fileno, METH_NOARGS, "A file that becomes readable when there is something to take."},
    {"learn", express_learn, METH_VARARGS, "Learn what a head and a text mean."},
    {"tell", express_tell, METH_VARARGS, "Tell the thread something, with a token, a text and a time as it takes them."},
    {"set", express_set, METH_VARARGS, "Set a limit, or how patient the thread is."},
    {"cuts", express_cuts, METH_NOARGS, "Return how often clients were turned away, by reason."},
    {"counts", express_counts, METH_NOARGS, "Return open connections, and bytes of requests."},
    {"take", express_take, METH_VARARGS, "Take groups of requests, notices, clients that left, refused."},
    {"copy", express_copy, METH_VARARGS, "Copy one input of a group's requests to where it is read."},
    {"whole", express_whole, METH_VARARGS, "Return all bytes of one request of a group."},
    {"release", express_release, METH_VARARGS, "Forget a group."},
    {"answer", express_answer, METH_VARARGS, "Write one text as the answer to each of these requests."},
    {"answer_alike", express_answer_alike, METH_VARARGS, "Write answers that differ in two numbers and their rows."},
    {"stop", express_stop, METH_NOARGS, "Close all connections and end the thread."},
    {nullptr, nullptr, 0, nullptr},
};

// Make a module with one type; `name` is the type's full name.
PyObject* make_module(const char* module_name, const char* name, const char* about) {
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, module_name, about, -1, {}, {}, {}, {}, {}};
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(express_dealloc)},
        {Py_tp_init, reinterpret_cast<void*>(express_init)},
        {Py_tp_methods, methods},
        {Py_tp_doc, const_cast<char*>("Reads requests with known heads from listening sockets, in a thread.")},
        {0, nullptr},
    };
    static PyType_Spec spec = {name, sizeof(Express), 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *made = PyModule_Create(&module), *type = made ? PyType_FromSpec(&spec) : nullptr;
    if (!type || PyModule_AddObjectRef(made, "Express", type) < 0) return nullptr;
    Py_DECREF(type);
    return made;
}

}  // namespace
