use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error, drawn on terminals only, for transfers worth waiting for.
#[derive(Default)]
pub(super) struct TransferBar {
    bar: Option<ProgressBar>,
}

/// A smaller file is there before a bar could be read.
const MIN_BYTES: u64 = 1 << 20;

impl TransferBar {
    pub(super) fn new(num_bytes: u64, name: &str) -> Self {
        if num_bytes < MIN_BYTES {
            return Self::default();
        }
        tracing::info!(target: "quire::models", "fetching {name} ({} MB)", num_bytes / 1_000_000);
        let style =
            ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})")
                .expect("the template names fields that indicatif has");
        let bar = ProgressBar::new(num_bytes).with_style(style).with_message(name.to_owned());
        Self { bar: Some(bar) }
    }

    pub(super) fn advance(&self, num_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(num_bytes);
        }
    }
}

impl Drop for TransferBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
