"""Stores: graphs beyond memory, in memory-mapped files that open in milliseconds."""

from rgat.data.store.conversion import convert
from rgat.data.store.labels import label_store
from rgat.data.store.stored_graph import StoredGraph, open_store
from rgat.data.store.writer import StoreWriter

__all__ = ["StoreWriter", "StoredGraph", "convert", "label_store", "open_store"]
