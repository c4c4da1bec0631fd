"""Algorithm 1: the cache holds everything. Every word moves once, so the I/O is the compulsory minimum."""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule


@schedule(problem="backward", source="Li et al., Algorithm 1", known_as="Algorithm 1", io="4*n*d + 3*d**2")
def no_cache(m, A1, A2, A3, dO, X, Y):
    """Everything resident: the compulsory minimum."""
    _, d = A1.shape
    g = m.tensor("g", d, d)
    A1_, A2_, X_ = m.read(A1), m.read(A2), m.read(X)
    S = m.compute(A1_ @ X_)
    m.delete(X_)
    f = m.compute(S @ A2_.T)
    m.delete(S)
    f[:] = exp(f)  # A
    l = m.compute(rowsum(f))
    f[:] = f / l
    m.delete(l)
    A3_, Y_ = m.read(A3), m.read(Y)
    h = m.compute(A3_ @ Y_)
    m.delete(A3_, Y_)
    dO_ = m.read(dO)
    q = m.compute(dO_ @ h.T)
    m.delete(dO_, h)
    v = m.compute(rowsum(f * q))
    q[:] = f * q - v * f  # p
    m.delete(f, v)
    T = m.compute(A1_.T @ q)
    m.delete(A1_, q)
    m.write(g, m.compute(T @ A2_))
