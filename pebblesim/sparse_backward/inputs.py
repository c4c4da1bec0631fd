"""Q, K, V and dO of one attention head: synthetic with typical structure, or from a user's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError, as_given
from pebblesim.core.files import load_arrays, load_numpy, names_of_arrays, reading
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.memory import readable, shortage
from pebblesim.core.sizes import whole, whole_or_zero

Array = NDArray[Any]

NAMES = ("Q", "K", "V", "dO")
FORMATS = ("npy", "npz", "safetensors")


@checked_kinds()
def synthetic_head(
    n: int,
    d: int,
    seed: int = 0,
    *,
    local: float = 8.0,
    width: float = 32.0,
    sinks: int = 4,
    sink: float = 6.0,
    noise: float = 1.0,
) -> dict[str, Array]:
    """Make a head with local attention, a few columns that all rows attend to ("sinks"), and noise.

    The scores S = Q Kᵀ / √d are, up to the accuracy that d dimensions allow,

        S_ij = local · exp(-(i - j)² / (2 width²)) + sink · [j is a sink] + noise · N(0, 1)

    The Gaussian is approximated by ⌊(d - 1)/4⌋ pairs of random Fourier features (Rahimi & Recht 2007), so its tails are
    noisy. One dimension holds the sinks, the others the noise. V and dO are standard normal.

    Args:
        n, d: number of rows, and dimension of the head.
        seed: random seed.
        local, width: height of the Gaussian around the diagonal, and its width in rows.
        sinks, sink: number of sinks (column 0 and random others), and their height.
        noise: standard deviation of the scores' noise.

    Returns:
        Q, K, V and dO, float64 of shape (n, d).

    >>> synthetic_head(16, 4)["K"].shape
    (16, 4)

    Raises:
        UsageError: a size or a width is not allowed, or there is not enough memory.
    """
    n, d = whole("n", n), whole("d", d)
    sinks = whole_or_zero("sinks", sinks)
    for name, value, allowed in (
        ("local", local, "0 or more"),
        ("width", width, "above 0"),
        ("noise", noise, "0 or more"),
    ):
        if not 0 <= value < float("inf") or (value == 0 and allowed == "above 0"):
            raise UsageError(f"{name} = {as_given(value)} was given; {name} must be a finite number, {allowed}.")
    check_room(n, d, arrays=12)
    rng = np.random.default_rng(whole_or_zero("seed", seed))
    pairs = (d - 1) // 4
    rest = d - 1 - 2 * pairs
    Q, K, V, dO = np.zeros((n, d)), np.zeros((n, d)), rng.standard_normal((n, d)), rng.standard_normal((n, d))
    heavy = np.append(0, 1 + rng.permutation(n - 1))[:sinks]
    Q[:, 0], K[heavy, 0] = np.sqrt(d) * sink, 1.0
    if pairs:
        angles = np.arange(n)[:, None] * (rng.standard_normal(pairs) / width)
        bell = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.sqrt(local * np.sqrt(d) / pairs)
        Q[:, 1 : 1 + 2 * pairs] = K[:, 1 : 1 + 2 * pairs] = bell
    if rest:
        strength = np.sqrt(noise * np.sqrt(d / rest))
        Q[:, d - rest :], K[:, d - rest :] = strength * rng.standard_normal((2, n, rest))
    return {"Q": Q, "K": K, "V": V, "dO": dO}


def check_room(n: int, d: int, arrays: int) -> None:
    """Refuse sizes at which this many arrays of float64, of shape (n, d), do not fit into memory.

    Raises:
        UsageError: they do not.
    """
    if (available := shortage(size := 8 * arrays * n * d)) is not None:
        raise UsageError(
            f"n = {n:,} and d = {d:,} were given; the arrays of such a head take {readable(size)}, and "
            f"{readable(available)} are available; give smaller sizes."
        )


@checked_kinds()
def load_head(sources: Sequence[str], head: Sequence[int] = (), seed: int = 0) -> dict[str, Array]:
    """Load Q, K, V and dO from files; a missing dO is standard normal, from `seed`.

    Args:
        sources: one .npz or .safetensors file with arrays of these names (capital or small letters), or one .npy file
            for each, as "Q=q.npy". Several files may share the names.
        head: index in the leading dimensions, if arrays have more than two dimensions: (head,) of (heads, n, d) and
            (batch, head) of (batch, heads, n, d).
        seed: random seed of a missing dO.

    Returns:
        The arrays by name, float64 of shape (n, d).

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "head.npz"), Q=np.ones((3, 2)), K=np.ones((3, 2)), V=np.ones((3, 2)))
    ...     sorted(load_head([str(Path(folder, "head.npz"))]))
    ['K', 'Q', 'V', 'dO']

    Raises:
        UsageError: a file does not exist or has an unknown format, or an array is missing, given twice, or refused by
            `checked`.
    """
    arrays: dict[str, tuple[str, Array]] = {}
    for source in sources:
        for name, array in _arrays(source).items():
            if name in arrays:
                raise UsageError(f"{name} is in {arrays[name][0]!r} and in {source!r}; give it once.")
            arrays[name] = source, array
    missing = [name for name in NAMES[:3] if name not in arrays]
    if missing:
        raise UsageError(
            f"no {' and no '.join(missing)} in {', '.join(map(repr, sources)) or 'no file at all'}; give Q, K, V "
            "and optionally dO: in one .npz or .safetensors file under these names, or as Q=q.npy K=k.npy V=v.npy."
        )
    return checked({name: _of_head(name, array, head) for name, (_, array) in arrays.items()}, seed)


def checked(arrays: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """Return the arrays of one head in float64; a missing dO is standard normal, from `seed`.

    Raises:
        UsageError: an array is missing, is not an array of real numbers of shape (n, d), contains NaN or infinity, or
            has another shape than Q.
    """
    for name in arrays:
        if name not in NAMES:
            raise UsageError(
                f"{name!r} is not an input of attention's backward pass; the inputs are {', '.join(NAMES)}."
            )
    for name in NAMES[:3]:
        if name not in arrays:
            raise UsageError(f"input {name} is missing; give Q, K, V and optionally dO.")
    good: dict[str, Array] = {}
    for name in NAMES:
        if name not in arrays:
            good[name] = np.random.default_rng(seed).standard_normal(good["Q"].shape)
            continue
        array = np.asarray(arrays[name])
        if array.dtype.kind != "f":
            raise UsageError(f"{name} holds {array.dtype}; it must hold floating-point numbers.")
        if array.ndim != 2 or 0 in array.shape:
            raise UsageError(f"{name} has shape {array.shape}; one head has shape (n, d), with at least one of each.")
        if name != "Q" and array.shape != good["Q"].shape:
            raise UsageError(
                f"{name} has shape {array.shape} and Q has {good['Q'].shape}; Q, K, V and dO must have the same n "
                "and d."
            )
        with np.errstate(all="ignore"):  # non-finite values are refused below
            good[name] = np.ascontiguousarray(array, np.float64)
        bad = np.argwhere(~np.isfinite(good[name]))
        if len(bad):
            i, j = bad[0]
            raise UsageError(
                f"{name}[{i}, {j}] is {array[i, j]}, one of {len(bad):,} that are not finite; it must be finite "
                "everywhere."
            )
    return good


def _of_head(name: str, array: Array, head: Sequence[int]) -> Array:
    leading = array.shape[:-2]
    if len(head) != len(leading):
        if not leading:
            raise UsageError(f"{name} has shape {array.shape}, which is one head already; leave --head out.")
        how = ",".join(["0"] * len(leading))
        raise UsageError(
            f"{name} has shape {array.shape}; its last two dimensions are n and d, and --head chooses one index for "
            f"each of the others, such as --head {how}."
        )
    for index, size in zip(head, leading, strict=True):
        if not 0 <= index < size:
            raise UsageError(f"--head {','.join(map(str, head))} does not exist in {name} of shape {array.shape}.")
    return array[tuple(head)]


def _arrays(source: str) -> dict[str, Array]:
    """Return the arrays of a file that are in `NAMES`, by name."""
    name, named, path = source.partition("=")
    if not named:
        path = source
    ending = Path(path).suffix[1:]
    if ending not in FORMATS:
        raise UsageError(f"inputs {source!r}: files end in {', '.join(f'.{each}' for each in FORMATS)}.")
    if named and (name not in NAMES or ending != "npy"):
        raise UsageError(f"inputs {source!r}: a name, one of {', '.join(NAMES)}, goes with a .npy file, as Q=q.npy.")
    if not named and ending == "npy":
        raise UsageError(f"inputs {source!r}: a .npy file holds one array; say which, as Q={path}.")
    if not Path(path).is_file():
        raise UsageError(f"inputs {source!r}: there is no such file.")
    if named:
        return {name: load_numpy(path, f"inputs {source!r}")}
    if ending == "safetensors":
        arrays = _safetensors(source, path)
        return {name: arrays[key] for name, key in _named(source, arrays).items()}
    keys = _named(source, names_of_arrays(path, f"inputs {source!r}"))
    arrays = load_arrays(path, f"inputs {source!r}", keys.values())  # no others: they may be of any size
    return {name: arrays[key] for name, key in keys.items()}


def _named(source: str, names: Iterable[str]) -> dict[str, str]:
    """Return, for those of `NAMES` that are among the names in a file, the one in the file."""
    of_name: dict[str, str] = {}
    for wanted in NAMES:
        alike = [key for key in names if key.casefold() == wanted.casefold()]
        exact = [key for key in alike if key == wanted] or alike
        if len(exact) > 1:
            raise UsageError(f"inputs {source!r}: {' and '.join(exact)} both could be {wanted}; keep one of them.")
        if exact:
            of_name[wanted] = exact[0]
    if not of_name:
        raise UsageError(
            f"inputs {source!r}: there is no {', '.join(NAMES)} in it, but {', '.join(sorted(names)) or 'nothing'}; "
            "rename the arrays."
        )
    return of_name


def _safetensors(source: str, path: str) -> dict[str, Array]:
    from safetensors import deserialize

    with reading(f"inputs {source!r}"):
        tensors = dict(deserialize(Path(path).read_bytes()))  # type: ignore[no-untyped-call]
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    wanted = {name.casefold() for name in NAMES}
    arrays: dict[str, Array] = {}
    for name, tensor in sorted(tensors.items()):
        kind = tensor["dtype"]
        if name.casefold() in wanted and kind not in kinds:
            raise UsageError(f"{name} in {source!r} holds {kind}; it must hold one of {', '.join(kinds)}.")
        if kind in kinds:
            array = np.frombuffer(tensor["data"], kinds[kind]).reshape(tensor["shape"])
            # a bfloat16 is the upper half of a float32, and numpy has none
            arrays[name] = (array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array
    return arrays
