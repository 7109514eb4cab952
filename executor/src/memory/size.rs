//! Byte counts for people.

use std::fmt;

/// Prints `1536` as `1.50 KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.2} {}", units[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let shown = [0, 1023, 1536, 1 << 20, (1 << 40) * 2000].map(|n| Size(n).to_string());
        assert_eq!(shown, ["0 B", "1023 B", "1.50 KiB", "1.00 MiB", "2000.00 TiB"]);
    }
}
