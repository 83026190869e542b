"""From seeds to batches: the schedule of an epoch, the sampler, and the sources that run it."""
