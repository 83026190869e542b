"""Sessions: the producers and channels of each training job, and their leases."""
