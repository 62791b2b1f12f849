"""Networks for tests and benchmarks: built with random weights, or real and trained."""
