"""Between organisations: engines that people have already carry sealed envelopes from coordinator to sites."""
