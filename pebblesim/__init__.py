"""pebblesim: a laboratory for the I/O complexity of attention.

>>> import pebblesim as ps
>>> ps.count("small-cache", n=4096, d=64, M=16384).io
244789248
>>> ps.formula("matmul-streamed").peak_words
Min(a, m)*Min(b, n) + Min(a, m) + 1
>>> ps.play("small-cache", n=8, d=4, M=24).game.complete
True
"""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler and (
    os.path.splitext(os.path.basename(sys.argv[0]))[0] == "pebblesim"
    or (sys.argv[0] == "-m" and sys.orig_argv[2:3] == ["pebblesim"])
):
    # This is the command, and it starts: until `pebblesim.__main__` answers Ctrl-C, it ends without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from typing import TYPE_CHECKING

import lazy_loader

from pebblesim.core import __version__ as __version__
from pebblesim.core.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A public name is imported when it is first used, from the module that the stub beside this file names. Some modules
# import numpy or sympy, which would slow down the start of every command.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _draw(result: Result, figure: "Figure") -> None:
    from pebblesim.views.plots.results import draw

    draw(result, figure)


Result.picture = _draw
