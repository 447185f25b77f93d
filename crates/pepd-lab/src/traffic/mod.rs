//! What the hosts of an experiment do: bulk flows, keystrokes, web pages, videos.

pub mod bulk;
pub mod keystrokes;
pub mod video;
pub mod web;
