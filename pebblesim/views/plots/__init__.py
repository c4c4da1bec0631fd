"""Pictures: each function takes data and axes, draws on the axes, and returns them. `style.save` saves a picture.

>>> import pebblesim as ps
>>> from pathlib import Path
>>> from pebblesim.views.plots.style import save
>>> from pebblesim.views.plots.words import words
>>> row = ps.count("small-cache", n=64, d=8, M=100)
>>> save(lambda figure: words([row], figure.subplots(), by="phase"), Path("words.svg"))  # doctest: +SKIP
"""
