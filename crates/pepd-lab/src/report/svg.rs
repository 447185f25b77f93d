//! What all figures have in common.

use anyhow::anyhow;

/// A figure as SVG.
pub(super) struct Figure {
    /// The name of its file, without the extension.
    pub(super) name: String,
    /// The file's text.
    pub(super) svg: String,
}

/// Width and height of a figure, in pixels.
pub(super) const SIZE: (u32, u32) = (960, 520);
/// The font of all texts.
pub(super) const FONT: &str = "sans-serif";

/// Converts what plotters says into an error of ours.
pub(super) fn draw_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw a figure: {error}")
}
