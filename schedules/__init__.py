"""The algorithms, one file for each family; importing this package registers those of all its files."""

from importlib import import_module
from pkgutil import iter_modules

if __name__ != "pebblesim.schedules":
    raise ImportError(f"import this package as 'pebblesim.schedules', not {__name__!r}")

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
