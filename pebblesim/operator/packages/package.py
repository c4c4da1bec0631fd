"""Write a package of kernels: a folder that needs PyTorch and Triton alone, as Hugging Face's kernel hub takes it.

Its modules are those that launch kernels, copied (`copied`); where these ask schedules and forecasts, it has a table of
the kernels that were chosen here, and their texts (`frozen`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from string import Template

from pebblesim.core.errors import UsageError
from pebblesim.core.files import check_folder, whole_folder
from pebblesim.operator.packages.copied import Copy
from pebblesim.operator.packages.frozen_table import Asked, Table

HOME = "pebblesim.operator."

FROZEN = f"{HOME}packages.frozen"

REPLACED = {
    (f"{HOME}planning", "*"): (FROZEN, ""),
    (f"{HOME}texts", "*"): (FROZEN, ""),
    (f"{HOME}launching.launching", "card_of"): (FROZEN, "card_of"),
    (f"{HOME}launching.launching", "groups_of"): (FROZEN, "groups_of"),
    (f"{HOME}launching.launching", "say_lost"): (FROZEN, "say_lost"),
    ("pebblesim.advice.cards", "Card"): (FROZEN, "Card"),
    ("pebblesim.advice.tiles", "Tiling"): (FROZEN, "Tiling"),
    ("pebblesim.language.masks", "Band"): (FROZEN, "Band"),
    ("pebblesim.language.masks", "Mask"): (FROZEN, "Band"),
    (f"{HOME}bias.with_bias", "attention_with_bias"): (f"{HOME}packages.frozen_bias", "attention_with_bias"),
    (f"{HOME}bias.with_bias", "with_bias"): (f"{HOME}packages.frozen_bias", "with_bias"),
    (f"{HOME}bias.with_bias", "why_not_with_bias"): (f"{HOME}packages.frozen_bias", "why_not_with_bias"),
    (f"{HOME}public", "attention"): (f"{HOME}packages.frozen_attention", "attention"),
}
"""Names that a package has from its table, where `operator` has them from schedules."""

FUNCTIONS = {
    "attention": "packages.frozen_attention",
    "flash_attn_func": "integrations.flash",
    "flash_attn_varlen_func": "integrations.flash",
}
"""Functions that a package offers, and their modules."""

OPERATORS = {r"torch\.ops\.pebblesim\.": "ops.", r'"pebblesim::(\w+)"': r'add_op_namespace_prefix("\1")'}
"""Operators of PyTorch, by whose names two packages in one process would clash: as the hub names them."""

BESIDE = {"build.toml": "", "flake.nix": "", "CARD.md": "", "__init__.py": "tests", "test_attention.py": "tests"}
BESIDE |= {"benchmark_attention.py": "benchmarks"}
"""Files beside the modules, texts with names to fill in, and their folders."""


def emit(
    asked: Asked, folder: Path, name: str, told: Callable[[str, float], None] = lambda *said: None
) -> dict[str, int]:
    """Write a package of kernels to a folder that is not there yet.

    `torch-ext` has its source, as kernel-builder takes it, and `build` what kernel-builder makes of it.

    Args:
        asked: what it is for.
        folder: where it is written; as a whole, or not at all.
        name: its name, of letters, digits and "-".
        told: called with the name of each class of calls that is done, and the part of all that are.

    Returns:
        Numbers of its classes of calls, texts and bytes.

    Raises:
        UsageError: the name or the folder cannot be, or there are no kernels for a class of calls.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(
            f"name is {name!r}; give small letters and digits with - between, such as pebblesim-attention."
        )
    check_folder(folder)
    made, classes = Table(asked), dict[str, object]()
    for each, contents in made.classes():
        classes[each] = contents
        told(each, len(classes) / made.number)
    table = {
        "card": asked.card.name,
        "capability": asked.card.capability,
        "widths": sorted(asked.widths),
        "limits": [list(each) for each in asked.limits],
        "ranges": asked.ranges,
        "shared": asked.shared,
        "softcap": asked.capped,
        "lengths": asked.lengths,
        "heads": asked.heads,
        "classes": classes,
    }
    texts = {f"kernels/{name}": text for name, text in made.texts.items()} | modules(asked)
    texts["table.json"] = json.dumps(table, separators=(",", ":")) + "\n"
    texts["_ops.py"] = _operators(name, texts)
    written = {**_beside(asked, name), **_built(name, texts)}
    with whole_folder(folder) as unfinished:
        for path, text in written.items():
            place = unfinished / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    return {"classes": len(classes), "kernels": len(made.texts), "bytes": sum(map(len, texts.values()))}


def modules(asked: Asked) -> dict[str, str]:
    """The modules of a package but those of kernels, by the names of their files."""
    made = Copy("pebblesim", REPLACED)
    for name, module in FUNCTIONS.items():
        made.need(HOME + module, name)
    found = {}
    for module in made.modules:
        text = made.text(module)
        for pattern, here in OPERATORS.items():
            text = re.sub(pattern, here, text)
        used = [name for name in ("add_op_namespace_prefix", "ops") if re.search(rf"(?<![\w.]){name}\b", text)]
        opening = f"from __future__ import annotations\n\nfrom ._ops import {', '.join(used)}\n"
        found[f"{made.file(module)}.py"] = (
            text.replace("from __future__ import annotations\n\n", opening) if used else text
        )
    imports = "".join(f"from .{made.file(HOME + module)} import {name}\n" for name, module in FUNCTIONS.items())
    names = ", ".join(map('"{}"'.format, FUNCTIONS))
    found["__init__.py"] = f'"""{_about(asked)}"""\n\n{imports}\n__all__ = [{names}]\n'
    return found


def _about(asked: Asked) -> str:
    widths, shared = (" and ".join(map(str, each)) for each in (asked.widths, asked.shared))
    return (
        f"Attention by kernels that pebblesim chose for {asked.card.name}: head dimensions {widths}, {shared} query "
        "heads for each KV head."
    )


def _operators(name: str, texts: dict[str, str]) -> str:
    """The module that names the operators, with a name that no other package has; kernel-builder writes its own."""
    mark = hashlib.sha256("".join(texts[each] for each in sorted(texts)).encode()).hexdigest()[:12]
    own = f"_{name.replace('-', '_')}_{mark}"
    return (
        f'"""The operators of this package in PyTorch."""\n\nimport torch\n\nops = torch.ops.{own}\n\n\n'
        f'def add_op_namespace_prefix(name: str) -> str:\n    """The whole name of an operator."""\n'
        f'    return f"{own}::{{name}}"\n'
    )


def _beside(asked: Asked, name: str) -> dict[str, str]:
    """The files of a package beside its modules."""
    here, capped = files("pebblesim.operator.packages") / "package_files", asked.capped
    filled = {
        "name": name,
        "module": name.replace("-", "_"),
        "about": _about(asked),
        "card": asked.card.name,
        "width": str(asked.widths[0]),
        "widths": ", ".join(map(str, asked.widths)),
        "shared": ", ".join(map(str, asked.shared)),
        "lengths": f"{asked.lengths[-1]:,}",
        "softcap": f"up to a head dimension of {capped[-1]}" if capped else "no",
        "masks": ", ".join(filter(None, (*map(_mask, asked.limits), "key ranges" if asked.ranges else ""))),
    }
    texts = {path: (here / f"{path}.in").read_text(encoding="utf-8") for path in BESIDE}
    return {f"{BESIDE[path]}/{path}".lstrip("/"): Template(text).substitute(filled) for path, text in texts.items()}


def _mask(limits: tuple[int | None, int | None]) -> str:
    left, right = limits
    if left is right is None:
        return "no mask"
    return "causal" if (left, right) == (None, 0) else f"window ({left}, {right})"


def _built(name: str, texts: dict[str, str]) -> dict[str, str]:
    """The modules as source, and as kernel-builder builds them: a folder for every card, and what it says of it."""
    module = name.replace("-", "_")
    metadata: dict[str, object] = {
        "id": re.search(r"torch\.ops\.(\w+)", texts["_ops.py"])[1],  # type: ignore[index]
        "name": name,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    built = {f"build/torch-cuda/{path}": text for path, text in texts.items()}
    built["build/torch-cuda/metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    return {f"torch-ext/{module}/{path}": text for path, text in texts.items() if path != "_ops.py"} | built
