"""Checks of saved states as they are loaded.

    self.n_groups = read(Count, state["n_groups"])

A state may come from a file that was damaged or from another machine. A value of another type that
is loaded unseen fails much later, when nothing can be undone any more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

MOST = 2**63 - 1
"""Largest number of anything that is counted."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Version = Annotated[int, Field(ge=-MOST, le=MOST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def read(shape: Any, value: Any) -> Any:
    """Return a value of a saved state if it has a shape.

    Args:
        shape: its type, such as ``list[Share]`` or ``dict[str, Count]``.
        value: the value, as JSON.

    Raises:
        ValueError: saying where it differs (pydantic's ``ValidationError``).

    Example:
        >>> read(dict[str, Count], {"groups": 3})
        {'groups': 3}
    """
    return _adapter(shape).validate_python(value)


@lru_cache(maxsize=64)
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
