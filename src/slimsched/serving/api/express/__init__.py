"""The compiled lines of HTTP and gRPC: clients send the same head again and again, so it is understood once.

Each line is a thread in C++ that owns the listening sockets of its protocol and never takes Python's lock. It
compares the bytes of each request with those that it has learnt, and knows no more of what they mean.

What a line does itself:
  accept connections, and close those that are over a limit, are idle, or make work for nothing;
  read requests whose head, and whose text before the tensors, it knows byte for byte; check their length;
  keep them until Python takes them, many at a time, grouped by what they mean;
  write answers that differ in two numbers and in the rows of their outputs;
  refuse what Python has just refused, with the same words, for a few milliseconds.

What it leaves to Python, because rules are needed that may change and must be written once:
  every other request. HTTP lends the connection with it, and takes it back once the request was answered and
  its head is known; so `express_http.hpp` knows no HTTP beyond the blank line behind a head. An HTTP/2
  connection carries many calls, so gRPC keeps it, and hands over single calls, message by message;
  what a head means (`KnownHead`): the terms, the model, where tensors lie, whether a token is right;
  what an answer says, and every refusal;
  TLS, web pages of other origins, shared memory, streams, compression.

Files: `line.py` drives a line from Python; `http.py` and `grpc_server.py` teach it. In C++,
`express_mailbox.hpp` is what thread and Python exchange, `express_line.hpp` is the thread with the limits by
address, `express_http.hpp` and `express_grpc.hpp` are the protocols (nghttp2 reads HTTP/2 frames), and
`express_python.hpp` is what Python sees. `docs/reliability.md` says which attacks are tested.
"""
