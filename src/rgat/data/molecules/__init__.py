"""Molecules: SMILES to graphs, tables of SMILES and tasks to data sets."""
