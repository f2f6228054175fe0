"""TLS for both protocols: a certificate and its key."""

import ssl
from pathlib import Path

import grpc

from slimsched.core.config import ConfigError, read_small_file
from slimsched.serving.api.ciphers import CIPHERS

PEM_LIMIT_BYTES = 2**20


class Tls:
    """A certificate and its key, for either protocol."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers(CIPHERS)
        self.context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self.context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        try:
            self._pair = (read_small_file(key, PEM_LIMIT_BYTES), read_small_file(cert, PEM_LIMIT_BYTES))
            self.context.load_cert_chain(cert, key, password=_refuse_encrypted)
        except (OSError, ssl.SSLError, ConfigError) as error:
            raise ConfigError(f"cannot use {cert} and {key} for TLS: {error}") from None

    def grpc_credentials(self) -> object:
        """Return the same pair as gRPC takes it."""
        return grpc.ssl_server_credentials([self._pair])


def _refuse_encrypted() -> str:
    """Called where the key has a password; nobody may be there to type it."""
    raise ConfigError("the key is encrypted; decrypt it with: openssl pkey -in KEY -out PLAIN_KEY")


def read_tls(cert: Path | None, key: Path | None) -> Tls | None:
    """Read the certificate and its key; None if neither is given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    return Tls(cert, key)
