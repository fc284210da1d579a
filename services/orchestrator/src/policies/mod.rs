//! Tool policies: which tools agents see, and which calls run, are asked about or are refused. `storage::tool_policy` changes them,
//! delivery and the tool-gateway obey them; here they are requested and listed.

pub mod http;
pub mod store;
