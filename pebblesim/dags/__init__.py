"""Any DAG: formats, generators, the best game found, bounds, and the optimum (DESIGN: any DAG)."""
