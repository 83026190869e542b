"""Sampling service: the scheduler of requests, and the threads and samplers that serve them."""
