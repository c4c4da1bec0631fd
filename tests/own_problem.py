"""Pieces of a reader's own file: a problem "scores", exp(Q Kᵀ), has this graph and this schedule."""

GRAPH = """
def declare(n, d, summation="chain"):
    n, d = whole("n", n), whole("d", d)
    b = Builder(summation)
    b.outputs = ("E",)
    b.input("Q", (n, d))
    b.input("K", (n, d))
    b.matmul("S", "Q", "K.T")
    b.elementwise("E", "exp", "S")
    return b
"""

SCHEDULE = '''
@ps.schedule(problem="scores", source="mine", io="2*n*d*ceiling(n/B) + n**2")
def tile_by_tile(m, Q, K, *, B: ps.Block):
    """A tile of E stays; columns of Q and K pass by."""
    n, d = Q.shape
    E = m.tensor("E", n, n)
    for i in m.tiles(n, B):
        for j in m.tiles(n, B):
            E_ij = m.zeros(i, j)
            for k in m.tiles(d, 1):
                E_ij += m.read(Q[i, k]) @ m.read(K[j, k]).T
            E_ij[:] = ps.exp(E_ij)
            m.write(E[i, j], E_ij)
'''
