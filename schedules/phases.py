"""Phases that compute one tensor, which schedules are mostly made of."""


def in_phase(write, m, C, *operands, **options):
    """Compute C by `write(m, C, *operands, **options)`, in a phase with its name."""
    with m.phase(C.name):
        write(m, C, *operands, **options)
