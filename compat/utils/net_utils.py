"""``verl.utils.net_utils``: addresses and free ports."""

from __future__ import annotations

import ipaddress
import socket


def is_ipv4(ip_str: str) -> bool:
    """Whether it is an IPv4 address."""
    return _is_address(ipaddress.IPv4Address, ip_str)


def is_ipv6(ip_str: str) -> bool:
    """Whether it is an IPv6 address."""
    return _is_address(ipaddress.IPv6Address, ip_str)


def is_valid_ipv6_address(address: str) -> bool:
    """``is_ipv6`` under the name that its parameter had first."""
    return is_ipv6(address)


def _is_address(kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def get_free_port(address: str, with_alive_sock: bool = False) -> tuple[int, socket.socket | None]:
    """A port that nobody listens on at ``address``.

    with_alive_sock: also the open socket that holds it, which the caller closes; else None.
    """
    holder = socket.socket(socket.AF_INET6 if is_ipv6(address) else socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    port = holder.getsockname()[1]
    if with_alive_sock:
        return port, holder
    holder.close()
    return port, None
