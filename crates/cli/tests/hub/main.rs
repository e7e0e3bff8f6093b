//! Models on a Hub, which is a server of the test.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/server.rs"]
mod server;

mod fetch;
mod hub;
mod hub_pictures;
