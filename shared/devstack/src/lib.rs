//! Starts a private nats-server and Postgres, and the scripted demo agent.
