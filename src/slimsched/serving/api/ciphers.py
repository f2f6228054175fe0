"""The cipher suites of TLS at both ports. It imports nothing: gRPC must know them before it is imported."""

CIPHERS = ":".join(
    [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ]
)
"""Suites of TLS 1.2: those of Mozilla's "intermediate" grade, with forward secrecy and without CBC.

The client chooses among them: without AES in hardware, ChaCha20 is faster. TLS 1.3 has good ones only.
"""
