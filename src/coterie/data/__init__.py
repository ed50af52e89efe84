"""Shards held to public bounds, partitions, public schemas and two data sets."""

from coterie.data import partition
from coterie.data.datasets import DATASETS, Dataset, load, load_adult, load_heart
from coterie.data.federation import Federation, Shard
from coterie.data.schema import CategoryColumn, Label, NumberColumn, NumberLabel, Schema

__all__ = [
    "DATASETS",
    "CategoryColumn",
    "Dataset",
    "Federation",
    "Label",
    "NumberColumn",
    "NumberLabel",
    "Schema",
    "Shard",
    "load",
    "load_adult",
    "load_heart",
    "partition",
]
