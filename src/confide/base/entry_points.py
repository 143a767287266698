"""Code that a user's own file names, "package.module:name". A plan, a bundle or a record of a run never names any."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from confide.base.errors import DataError, InputError

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def names_code(value: object) -> bool:
    """Whether it is written as such a name.

    >>> names_code("mine:network"), names_code("softmax:10")
    (True, False)
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def look_in(folder: Path) -> None:
    """Modules are looked for there too, after everything that is installed."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)


def home(name: str) -> Path | None:
    """Where the outermost module of such a name lies, a file or a package's folder; None where none is found.

    >>> home("absent_module:train") is None
    True
    """
    spec = find_spec(name.partition(":")[0].partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def loaded(field: str, name: object, beside: str) -> Any:
    """What it names.

    Args:
        field: the key that names it.
        beside: the file in whose folder the module may lie.

    Raises:
        DataError: the module raised something; it may have looked at the data.
        InputError: there is no such thing: which module, and why.
    """
    if not isinstance(name, str) or not names_code(name):
        raise InputError(field, name, "must be written package.module:name")
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as e:
        what = f"there is no module {e.name!r}" if e.name else "a module is missing"
        raise InputError(field, name, f"{what}; install it, or put it beside {beside}") from None
    except AttributeError:
        raise InputError(field, name, f"module {module!r} could be loaded but gives no {attribute!r}") from None
    except (ImportError, SyntaxError) as e:
        raise InputError(field, name, f"loading {module!r} raised {type(e).__name__}: {e}") from e
    except (Exception, SystemExit) as e:
        raise DataError(field, name, f"loading {module!r} raised {type(e).__name__}: {e}") from e
