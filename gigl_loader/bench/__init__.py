"""What sampling and loading cost, beside the limits of the machine and beside a peer, in one run."""
