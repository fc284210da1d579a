//! Runs the tools that agents call, once.
