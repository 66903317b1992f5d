"""TLS for connections to Redis, from the options that URLs and clients of redis-py have for it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from outlive.errors import BadArgument

_REQUIREMENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a context for options such as `ssl_ca_certs`. Raises BadArgument when a file cannot be used."""
    given = {name.removeprefix("ssl_"): value for name, value in options.items() if value is not None}
    if given.get("validate_ocsp") or given.get("validate_ocsp_stapled"):
        raise BadArgument(
            "outlive does not check certificates by OCSP; open the client without ssl_validate_ocsp"
        )
    requirement = given.get("cert_reqs", "required")
    context = ssl.create_default_context()
    context.check_hostname = False  # before the mode: CERT_NONE refuses it
    context.verify_mode = _REQUIREMENTS.get(requirement, requirement)
    context.check_hostname = context.verify_mode != ssl.CERT_NONE and given.get("check_hostname", True)
    for flag in given.get("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in given.get("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    try:
        if "certfile" in given or "keyfile" in given:
            context.load_cert_chain(given.get("certfile", ""), given.get("keyfile"), given.get("password"))
        if given.keys() & {"ca_certs", "ca_path", "ca_data"}:
            context.load_verify_locations(given.get("ca_certs"), given.get("ca_path"), given.get("ca_data"))
        if "ciphers" in given:
            context.set_ciphers(given["ciphers"])
    except (OSError, TypeError) as error:
        raise BadArgument(
            f"the TLS options cannot be used: {error}; check the paths of the ssl_ options"
        ) from error
    if "min_version" in given:
        context.minimum_version = given["min_version"]
    return context
