//! Pictures as files: SVG as they are drawn, PNG for whoever cannot show one. Pixels are `resvg`'s, with a font that comes
//! with the program, so that a picture looks the same on a machine without fonts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, Tree, fontdb};

use crate::error::{Error, Result};

/// Pixels of a PNG to one of the drawing, so that small print can be read.
const SCALE: f32 = 2.0;

/// A format, by the ending of a file's name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Svg,
    Png,
}

/// Where a picture goes.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    path: PathBuf,
    format: Format,
}

impl Picture {
    /// Takes the path of a file, which ends in `.svg` or `.png`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let path = PathBuf::from(text);
        let is =
            |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let formats = [("svg", Format::Svg), ("png", Format::Png)];
        match formats.into_iter().find(|(ending, _)| is(ending)) {
            Some((_, format)) => Ok(Self { path, format }),
            None => Err("expected a file that ends in .svg or .png"),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the drawing in the file's format.
    ///
    /// # Errors
    ///
    /// [`Error::Draw`] for a drawing that has no pixels, [`Error::Write`].
    pub(super) fn write(&self, svg: &str) -> Result<()> {
        let content = match self.format {
            Format::Svg => svg.as_bytes().to_vec(),
            Format::Png => png(svg)
                .map_err(|reason| Error::Draw { path: self.path.clone(), reason: reason.to_string() })?,
        };
        fs::write(&self.path, content).map_err(|source| Error::Write { path: self.path.clone(), source })
    }
}

/// The drawing in pixels, [`SCALE`] to one of its own.
fn png(svg: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let tree = Tree::from_str(svg, &usvg::Options { fontdb: Arc::new(fonts()), ..usvg::Options::default() })?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("it is too large")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or("it is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    Ok(pixels.encode_png()?)
}

/// One font, for every family that a drawing asks for.
fn fonts() -> fontdb::Database {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    if let Some(family) = family {
        fonts.set_sans_serif_family(family);
    }
    fonts
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWING: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 60 20" width="60" height="20"
        font-family="sans-serif"><rect width="100%" height="100%" fill="#ffffff"/>
        <text x="4" y="14" font-size="12" fill="#000000">TEXT</text></svg>"##;

    #[test]
    fn a_png_shows_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.PNG");
        Picture::parse(path.to_str().unwrap()).unwrap().write(DRAWING).unwrap();
        let pixels = Pixmap::load_png(path).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (120, 40));
        let num_dark = pixels.pixels().iter().filter(|pixel| pixel.red() < 128).count();
        assert!((50..2000).contains(&num_dark), "letters, {num_dark} dark pixels");
    }

    #[test]
    fn a_picture_is_svg_or_png() {
        assert_eq!(Picture::parse("a/run.svg").unwrap().format, Format::Svg);
        assert_eq!(Picture::parse("run.png").unwrap().format, Format::Png);
        for other in ["run", "run.gif", ".svg", ""] {
            assert_eq!(Picture::parse(other).unwrap_err(), "expected a file that ends in .svg or .png");
        }
    }
}
