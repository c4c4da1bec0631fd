"""The problems, one file for each family; importing this package registers them all.

Each problem is declared in one place: shapes, numpy reference, graph, Θ, and bounds.
"""

# In the order in which they are listed.
# isort: off
from pebblesim.catalogue import backward
from pebblesim.catalogue import forward
from pebblesim.catalogue import backward_qkv
from pebblesim.catalogue import activation
from pebblesim.catalogue import latent
from pebblesim.catalogue import latent_backward
from pebblesim.catalogue import linear
from pebblesim.catalogue import matmul
from pebblesim.catalogue import projected

__all__ = [
    "activation",
    "backward",
    "backward_qkv",
    "forward",
    "latent",
    "latent_backward",
    "linear",
    "matmul",
    "projected",
]
