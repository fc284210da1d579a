//! The pool, entities, migrations, outbox, and the few writes that span two owners.
