//! `queue-conformance`: checks how a service that runs agents treats its queue. The program plays the model and tells a driver what
//! to do; a case says what must come of it.
//!
//! In reading order: [`case`] (cases as data), [`protocol`] (the lines between program and driver), [`model`] (the model's server),
//! [`driver`] (the child process), [`run`] (one case, step by step), [`report`] and [`doc`] (output). Drivers in this crate:
//! [`reference`], which is correct and has planted bugs, and [`signalbox`]. [`http`] is their client.

pub mod case;
pub mod doc;
pub mod driver;
pub mod http;
pub mod model;
pub mod protocol;
pub mod reference;
pub mod report;
pub mod run;
pub mod signalbox;
