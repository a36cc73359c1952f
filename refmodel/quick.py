"""Frozen dataclasses that are made fast: each op is made twice before it runs, drawn and bound."""

from dataclasses import fields
from typing import Any, TypeVar

Value = TypeVar("Value")


def quick(cls: type[Value]) -> type[Value]:
    """Give a frozen dataclass with slots an `__init__` that fills the slots themselves.

    The one that it has calls `object.__setattr__` for each field, which takes twice as long. As
    `dataclass` does, this writes the function as text: one that loops over fields is slow again.
    Nothing else changes; the instances stay frozen.
    """
    plain: Any = cls.__init__
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    lines = [f" set_{name}(self, {name})" for name in names]
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    scope: dict[str, Any] = {f"set_{name}": vars(cls)[name].__set__ for name in names}
    exec("\n".join([f"def __init__(self, {', '.join(names)}):", *lines]), scope)  # noqa: S102 - ours
    scope["__init__"].__defaults__ = plain.__defaults__
    setattr(cls, "__init__", scope["__init__"])  # noqa: B010 - no checker is to see it
    return cls
