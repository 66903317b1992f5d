"""A Valkey (or Redis) server of the test's own."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST
from rig.servers.binary import ServerMissing, valkey_program
from rig.servers.resp import Refused, Resp
from rig.servers.server import Server, ServerFailed


class ValkeyServer(Server):
    """Valkey or Redis on a loopback port.

    Without `appendonly` a restart forgets everything. `settings` are those of valkey.conf; they may be changed before a
    restart. With `tls` the port speaks TLS alone, under a certificate that the URL names.
    """

    kind = "valkey"

    def __init__(
        self,
        *,
        appendonly: bool = False,
        appendfsync: Literal["always", "everysec", "no"] = "everysec",
        maxmemory_policy: str = "noeviction",
        password: str | None = None,
        tls: bool = False,
        replica_of: ValkeyServer | None = None,
        settings: Mapping[str, str] | None = None,
        program: Path | None = None,
        folder: Path | None = None,
        ram: bool = False,
    ) -> None:
        self.program = program or valkey_program()
        super().__init__(folder=folder, ram=ram)
        self.password = password
        self.tls = tls
        self.replica_of = replica_of
        self.settings = {
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "maxmemory-policy": maxmemory_policy,
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        user = "" if self.password is None else f":{quote(self.password, safe='')}@"
        if self.tls:
            return f"rediss://{user}{self.address}/0?ssl_ca_certs={quote(str(self._certificate), safe='/')}"
        return f"redis://{user}{self.address}/0"

    def connect(self, *, timeout_s: float = PATIENCE_S) -> Resp:
        """Return a plain connection, for what a test has to arrange."""
        return Resp(self.port, password=self.password, tls=self._trust, timeout_s=timeout_s)

    def call(self, *arguments: str | bytes | int) -> Any:
        """Send one command on a connection of its own and return the answer."""
        with self.connect() as connection:
            return connection.call(*arguments)

    def info(self, section: str) -> dict[str, str]:
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    # ------------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self.tls and not self._certificate.exists():
            _make_certificate(self._certificate, self._key)

    def _command(self) -> list[str]:
        options = {**self._options(), **self.settings}
        arguments = [part for name, value in options.items() for part in (f"--{name}", *_words(name, value))]
        return [str(self.program), *arguments]

    def _options(self) -> dict[str, str]:
        options = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.folder),
            "save": "",
            "daemonize": "no",
        }
        # A replica would wait 5 s for others to join it before it is sent anything.
        options |= {"repl-diskless-sync-delay": "0"}
        if self.tls:
            options |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
            options |= {"tls-cert-file": str(self._certificate), "tls-key-file": str(self._key)}
        if self.password is not None:
            options |= {"requirepass": self.password, "masterauth": self.password}
        if self.replica_of is not None:
            options |= {"replicaof": f"{HOST} {self.replica_of.port}"}
        return options

    def _is_ready(self) -> bool:
        try:
            return bool(self.call("PING") == b"PONG")
        except (OSError, Refused):  # not listening yet, or still loading
            return False

    @property
    def _certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def _key(self) -> Path:
        return self.folder / "key.pem"

    @cached_property
    def _trust(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=str(self._certificate)) if self.tls else None


def _words(name: str, value: str) -> list[str]:
    """Return a setting as arguments: most are one word, `save ""` and passwords must not be taken apart."""
    return value.split() if name in ("replicaof", "save") and value else [value]


def _make_certificate(certificate: Path, key: Path) -> None:
    if shutil.which("openssl") is None:
        raise ServerMissing(
            "openssl is not installed: the system's package `openssl` makes the certificate for TLS"
        )
    how = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    whom = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"]
    where = ["-keyout", str(key), "-out", str(certificate)]
    made = subprocess.run(
        ["openssl", "req", *how, *whom, *where], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise ServerFailed(f"openssl made no certificate:\n{made.stderr}")
