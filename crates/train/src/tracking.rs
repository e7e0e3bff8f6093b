//! Metrics of a run, to files and services.
