"""How symbols of a release are found: by name, never by version."""

from contextlib import suppress
from importlib import import_module
from typing import Any


class Gone(Exception):
    """A symbol that is needed is in none of the places where releases have had it."""


def find(*places: str) -> Any:
    """What the first of these ``module:name.name`` that exists holds; None where none does.

    Raises:
        Gone: a module is there and cannot be imported, as something that it needs is gone.
    """
    for place in places:
        module_name, _, path = place.partition(":")
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if f"{module_name}.".startswith(f"{error.name}."):
                continue
            raise Gone(f"{module_name} cannot be imported: {error}") from error
        except ImportError as error:
            raise Gone(f"{module_name} cannot be imported: {error}") from error
        with suppress(AttributeError):
            for name in path.split(".") if path else ():
                found = getattr(found, name)
            return found
    return None


def need(*places: str) -> Any:
    """The same, where the driver cannot do without.

    Raises:
        Gone: there is none.
    """
    found = find(*places)
    if found is None:
        raise Gone(f"vLLM has none of {', '.join(places)}")
    return found


def accepted(made: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Of keyword arguments those that a dataclass has a field for."""
    return {name: value for name, value in given.items() if name in made.__dataclass_fields__}


def first_of(owner: Any, *names: str) -> int:
    """The number that an object has under the first of these names.

    Raises:
        Gone: it has none.
    """
    for name in names:
        if hasattr(owner, name):
            return int(getattr(owner, name))
    raise Gone(f"{type(owner).__name__} of vLLM has none of {', '.join(names)}")
