//! JetStream: topology, batch consumers, publishing, dead letters. Bytes and headers, not business.
