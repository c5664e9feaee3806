"""Methods from outside the package: a Python file that a user names, or an entry point of the group `harness.methods`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from harness.errors import UserError, first_line
from harness.methods.base import Method
from harness.objectives.definitions import DEFINITIONS
from harness.objectives.definitions.outside import definitions_in, module_of
from harness.specs import digest_of

GROUP = "harness.methods"


def methods_of(module: ModuleType) -> list[type[Method]]:
    """The methods that a module defines."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and "name" in vars(value)
        and value.__module__ == module.__name__
    ]


def method_in(path: Path, names: Iterable[str]) -> type[Method]:
    """The method that a file defines, whose objectives can be built from now on.

    `names`: of methods that it cannot be named as. Its `source` names the file and its digest. Raises UserError for a file that cannot be read or run, without a method, with several, and for the name of a
    method or an objective that there is already.
    """
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"methods: {path} cannot be read ({getattr(error, 'strerror', None) or error}); name a Python file that defines a method."
        ) from None
    module = module_of(code, str(path))
    own = methods_of(module)
    if len(own) != 1:
        count = "no Method" if not own else f"{len(own)} methods ({', '.join(method.name for method in own)})"
        raise UserError(f"{path}: defines {count}; a file defines one, a subclass of Method with a name.")
    (method,) = own
    if method.name in names:
        raise UserError(f"{path}: method '{method.name}' has the name of another one; give it a name of its own.")
    if not method.name.isidentifier() or method.name != method.name.lower():
        raise UserError(f"{path}: method '{method.name}' should be named in small letters, digits and '_'.")
    definitions = definitions_in(module)
    for name in definitions:
        if name in DEFINITIONS and not DEFINITIONS[name].source:
            raise UserError(f"{path}: objective '{name}' has the name of another one; give it a name of its own.")
    DEFINITIONS.update(definitions)
    method.source = f"{path.name}, digest {digest_of(code)}"
    return method


def add_installed(read: Callable[[Path], object]) -> None:
    """`read` the files of the modules that installed packages name as entry points. One that cannot be read is left out with a warning: other methods do
    without it."""
    for point in entry_points(group=GROUP):
        try:
            spec = find_spec(point.module)
            if spec is None or not spec.origin:
                raise UserError(f"there is no module {point.module}.")
            read(Path(spec.origin))
        except (Exception, SystemExit) as error:  # whatever the package raises as it is looked for
            text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}."
            warnings.warn(
                f"entry point {point.name} of {GROUP} is left out: {text} Install its package again.", stacklevel=1
            )
