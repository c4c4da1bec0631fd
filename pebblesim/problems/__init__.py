"""The problems, one file for each family; importing this package registers them all.

Each problem is declared in one place: shapes, numpy reference, graph, Θ, and bounds.
"""

# In the order in which they are listed.
# isort: off
from pebblesim.problems import backward
from pebblesim.problems import forward
from pebblesim.problems import backward_qkv
from pebblesim.problems import activation
from pebblesim.problems import latent
from pebblesim.problems import linear
from pebblesim.problems import matmul
from pebblesim.problems import projected

__all__ = ["activation", "backward", "backward_qkv", "forward", "latent", "linear", "matmul", "projected"]
