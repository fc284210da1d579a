//! Whole-system scenarios: real processes, real broker, real database.
