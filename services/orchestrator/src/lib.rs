//! The HTTP API: accounts, agents, tasks, threads, and what happened.
