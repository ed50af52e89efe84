"""Beyond the papers: all algorithms at equal certified loss."""
