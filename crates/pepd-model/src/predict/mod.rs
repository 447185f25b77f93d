//! What is to be expected of a connection that is split: the laws of its legs, and the fluid between them.
//!
//! - [`Path`] is what is asked about, and [`Path::predict`] the answer;
//! - [`least_buffer`] is the smallest buffer for a wanted share of what is possible;
//! - [`windowed`] is what a window costs one leg, and [`enough`] the window that it takes;
//! - [`over_loss`] and [`over_buffer`] are curves, by common random numbers.

mod curve;
#[cfg(test)]
mod documented;
mod path;
mod prediction;
mod window;

pub use self::curve::{Point, least_buffer, over_buffer, over_loss};
pub use self::path::{Counted, Path};
pub use self::prediction::{Class, Effort, Prediction, Quantiles};
pub use self::window::{Windowed, enough, windowed};
