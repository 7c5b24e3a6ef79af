//! Against an evaluator in this process, honest and not.
