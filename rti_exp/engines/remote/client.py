"""The HTTP client of an endpoint, and the proxy through which it is reached."""

from __future__ import annotations

import ipaddress
import os
import ssl
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import SettingsError

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]


def create_client(settings: RemoteSettings, secret: str | None, key: str) -> AsyncOpenAI:
    """
    Raises:
        SettingsError: the client is not installed, or the proxy that the environment names cannot be used.
    """
    try:
        import openai  # pyright: ignore[reportMissingImports]
        import tenacity  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingsError(
            f"{key}: needs the client of remote models ({error.name}): pip install 'rti-exp[remote]'"
        ) from error
    timeout = openai.Timeout(settings.read_seconds, connect=settings.connect_seconds, pool=None)
    variable = proxy_variable(settings.base_url)
    try:
        if variable is None:
            # Without the environment's proxies the client would not look for certificates there either.
            certificates = {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys()
            verify = ssl.create_default_context() if certificates else True
            http_client = openai.DefaultAsyncHttpxClient(timeout=timeout, trust_env=False, verify=verify)
        else:
            _ = urllib.parse.urlsplit(os.environ[variable]).port  # a ValueError where the client has its own class
            http_client = openai.DefaultAsyncHttpxClient(timeout=timeout)
    except (ImportError, ValueError) as error:  # the proxy's address is not shown: it may hold a password
        why = "SOCKS needs pip install 'rti-exp[remote]'" if isinstance(error, ImportError) else "not a proxy's address"
        raise SettingsError(
            f"{key}.base_url={settings.base_url!r}: the proxy in the environment variable {variable} cannot be used "
            f"({why}); unset it, or name the endpoint's host in NO_PROXY"
        ) from None
    # Never None: the client would take OPENAI_API_KEY, and send it to whatever base_url says. Retries are tenacity's.
    return openai.AsyncOpenAI(
        api_key=secret or "none", base_url=settings.base_url, timeout=timeout, max_retries=0, http_client=http_client
    )


def proxy_variable(base_url: str) -> str | None:
    """The environment variable with the proxy for this address; None if it is reached directly, as this machine is."""
    parts = urllib.parse.urlsplit(base_url)
    host = parts.hostname or ""
    if _is_this_machine(host) or urllib.request.proxy_bypass(host):
        return None
    names = [f"{scheme}_proxy" for scheme in (parts.scheme, "all")]
    return next((name for lower in names for name in (lower, lower.upper()) if os.environ.get(name)), None)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
