"""The generic suite: attempts that any Python code could make on any host."""

from __future__ import annotations

from contextlib import nullcontext

from coevo_gym.escapes import descriptors, files, kernel, metadata, network, processes, resources
from coevo_gym.escapes.host import HostSetup
from coevo_gym.escapes.payload import Suite


def generic_suite() -> Suite:
    """Return attempts against files, processes, the kernel, networks and resources of the host."""
    payloads = (
        *files.PAYLOADS,
        *metadata.PAYLOADS,
        *descriptors.PAYLOADS,
        *processes.PAYLOADS,
        *kernel.PAYLOADS,
        *network.PAYLOADS,
        *resources.PAYLOADS,
    )
    return Suite("generic", payloads, lambda level: nullcontext(HostSetup(level)))
