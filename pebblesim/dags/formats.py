"""Graph files: list of formats, reading and writing.

A format is given by name, or by the file's suffix. Inputs are the sources and outputs the sinks, unless the file says
otherwise (possible in DOT, GraphML and JSON). Files of whole numbers are read fast: about ten million edges in a few
seconds. Files with named vertices are meant for smaller graphs.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.kinds import checked_kinds
from pebblesim.dags import graphml, named_formats as named, numbered_formats as numbered
from pebblesim.graphs.cdag import Cdag

MOST_BYTES_WITH_NAMES: Final = 200 * 2**20


WORDS: Final = "the number of words of a vertex"
ENDS: Final = "which vertices are inputs and which are outputs"


class Format(NamedTuple):
    """How to read and write a format.

    Attributes:
        read, write: from bytes, and to bytes.
        suffixes: of its files.
        stores: what it stores besides vertices and edges: `WORDS`, `ENDS`.
        named: whether vertices have names; such files are slower to read.
    """

    read: Callable[[bytes], Cdag]
    write: Callable[[Cdag], bytes]
    suffixes: tuple[str, ...]
    stores: tuple[str, ...] = ()
    named: bool = False


FORMATS: Final = {
    "dot": Format(named.dot, named.write_dot, (".dot", ".gv"), (WORDS, ENDS), True),
    "graphml": Format(graphml.read, graphml.write, (".graphml",), (WORDS, ENDS), True),
    "json": Format(named.node_link, named.write_node_link, (".json",), (WORDS, ENDS), True),
    "hyperdag": Format(numbered.hyperdag, numbered.write_hyperdag, (".hdag", ".txt"), (WORDS,)),
    "edges": Format(numbered.edge_list, numbered.write_edge_list, (".edges", ".edgelist")),
    "matrix-market": Format(numbered.matrix_market, numbered.write_matrix_market, (".mtx",)),
    "converter": Format(numbered.converter, numbered.write_converter, (".dag",), (WORDS,)),
}
SUFFIXES: Final = {suffix: name for name, known in FORMATS.items() for suffix in known.suffixes}


@checked_kinds()
def load_graph(path: str | Path, format: str | None = None) -> Cdag:
    """Read a graph from a file.

    Args:
        path: the file.
        format: a name in `FORMATS`; by default the suffix decides.

    Returns:
        The graph.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "square.txt")
    ...     _ = file.write_text("0 1\\n0 2\\n1 3\\n2 3\\n")
    ...     load_graph(file, "edges")
    Cdag(4 vertices, 4 edges)

    Raises:
        UnknownName: the format is not known.
        UsageError: the file cannot be read, or does not hold an acyclic graph in this format; the message names the
            place.
    """
    path = Path(path)
    known = _format(path, format)
    try:
        if known.named and path.stat().st_size > MOST_BYTES_WITH_NAMES:
            raise UsageError(
                f"{path} has {path.stat().st_size:,} bytes; files with named vertices may have at most "
                f"{MOST_BYTES_WITH_NAMES:,}; convert it to HyperDAG (.hdag) or an edge list."
            )
        data = path.read_bytes().removeprefix(BOM_UTF8)
        return known.read(data)
    except (OSError, UnicodeDecodeError, MemoryError) as error:
        why = getattr(error, "strerror", None) or ("it is too large" if isinstance(error, MemoryError) else error)
        raise UsageError(f"cannot read {path}: {why}.") from error
    except UsageError as error:
        raise UsageError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


@checked_kinds()
def save_graph(graph: Cdag, path: str | Path, format: str | None = None) -> None:
    """Write a graph to a file, as a whole or not at all.

    Loaded again, the graph has the same vertices, edges, words, inputs and outputs, and each vertex its operands in the
    same order; an operand that is used twice is one edge. A format that cannot store one of these refuses the graph.
    Tensors become names in DOT, GraphML and JSON, and are lost in formats without names.

    Args:
        graph: the graph.
        path: the file; its suffix decides the format.
        format: a name in `FORMATS`; by default the suffix decides.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from pebblesim.dags.generators import generate
    >>> with TemporaryDirectory() as folder:
    ...     save_graph(generate("fft", n=4), Path(folder, "fft.json"))
    ...     load_graph(Path(folder, "fft.json"))
    Cdag(12 vertices, 16 edges)

    Raises:
        UnknownName: the format is not known.
        UsageError: the suffix is unknown, the format cannot hold this graph, or the file cannot be written.
    """
    path = Path(path)
    data = written(graph, _format(path, format))
    with whole_file(path) as unfinished:
        unfinished.write_bytes(data)


def written(graph: Cdag, known: Format) -> bytes:
    """Return the file of a graph.

    Raises:
        UsageError: the format cannot hold this graph; the message names formats that can.
    """
    if graph.takes_over is not None:
        raise UsageError(
            "sums in place cannot be saved: no format stores which vertex takes over a pebble; save the graph of "
            "another summation, such as chain."
        )
    needed = {*[WORDS] * (graph.weights is not None), *[ENDS] * (not graph.has_usual_ends)}
    if lost := sorted(needed - {*known.stores}):
        able = [file_format.suffixes[0] for file_format in FORMATS.values() if needed <= {*file_format.stores}]
        raise UsageError(
            f"a {known.suffixes[0]} file cannot store {' or '.join(lost)}; "
            f"save to {', '.join(able[:-1])} or {able[-1]}."
        )
    try:
        return known.write(graph)
    except UnicodeEncodeError as error:
        raise UsageError(f"a name is not a text that UTF-8 can encode: {error.reason}; save to .json.") from None


def _format(path: Path, name: str | None) -> Format:
    if name is None:
        name = SUFFIXES.get(path.suffix.lower())
        if name is None:
            raise UsageError(f"cannot tell a format from {path.name!r}; end it with one of {', '.join(SUFFIXES)}.")
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return FORMATS[name]
