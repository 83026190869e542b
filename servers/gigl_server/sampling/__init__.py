"""Sampling service: the scheduler of requests, and the threads and samplers that answer them."""
