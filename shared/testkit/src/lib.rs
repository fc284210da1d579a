//! Fresh database, own broker, fixtures, fault-injecting provider. Dev-dependency only.
