"""TLS for connections to Redis, from the options that URLs and clients of redis-py have for it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from outlive.errors import BadArgument

_REQUIREMENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a TLS context; raise BadArgument when a file or option cannot be used."""
    settings = {name.removeprefix("ssl_"): value for name, value in options.items() if value is not None}
    if settings.get("validate_ocsp") or settings.get("validate_ocsp_stapled"):
        raise BadArgument(
            "outlive does not check certificates by OCSP; open the client without ssl_validate_ocsp"
        )
    requirement = settings.get("cert_reqs", "required")
    context = ssl.create_default_context()
    context.check_hostname = False  # before the mode: CERT_NONE refuses it
    context.verify_mode = _REQUIREMENTS.get(requirement, requirement)
    context.check_hostname = context.verify_mode != ssl.CERT_NONE and settings.get("check_hostname", True)
    for flag in settings.get("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in settings.get("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    try:
        if "certfile" in settings or "keyfile" in settings:
            context.load_cert_chain(
                settings.get("certfile", ""), settings.get("keyfile"), settings.get("password")
            )
        if settings.keys() & {"ca_certs", "ca_path", "ca_data"}:
            context.load_verify_locations(
                settings.get("ca_certs"), settings.get("ca_path"), settings.get("ca_data")
            )
        if "ciphers" in settings:
            context.set_ciphers(settings["ciphers"])
    except (OSError, TypeError) as error:
        raise BadArgument(
            f"the TLS options cannot be used: {error}; check the paths of the ssl_ options"
        ) from error
    if "min_version" in settings:
        context.minimum_version = settings["min_version"]
    return context
