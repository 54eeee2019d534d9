"""Validation of saved states when they are loaded.

    self.n_groups = validate(Count, state["n_groups"])

A state may come from a damaged file or from another machine. Without validation, a value of the
wrong type would fail much later, when the load can no longer be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from coevo_gym.core.errors import CoevoError, ConfigError

MAX_COUNT = 2**63 - 1
"""Upper limit for all counts."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Version = Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def validate(shape: Any, value: Any) -> Any:
    """Return a value from a saved state after validating its type.

    Args:
        shape: the expected type, such as ``list[Share]`` or ``dict[str, Count]``.
        value: the value, as JSON.

    Raises:
        ValueError: if the value does not match; a pydantic ``ValidationError`` that says where.

    Example:
        >>> validate(dict[str, Count], {"groups": 3})
        {'groups': 3}
    """
    return _adapter(shape).validate_python(value)


@contextmanager
def restore_on_error(
    save: Callable[[], dict[str, Any]], load: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    """Restore the earlier state if the ``with`` block, which loads another state, fails.

    Args:
        save: returns the state.
        load: restores a state from ``save``.

    Raises:
        ConfigError: if the block raises an exception that is not a :class:`CoevoError`.
    """
    before = save()
    try:
        yield
    except BaseException as error:
        load(before)
        if isinstance(error, CoevoError) or not isinstance(error, Exception):
            raise
        raise ConfigError(
            f"The saved state is damaged and was not loaded: {type(error).__name__}: {error}"
        ) from error


@lru_cache(maxsize=64)
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
