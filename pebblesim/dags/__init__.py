"""Any DAG: file formats, generators, heuristic games, lower bounds, and the optimum."""
