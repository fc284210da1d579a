//! Every message on the wire, and the schemas written from them.
