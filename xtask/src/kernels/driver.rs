//! What the driver of this machine, if there is one, can load.

use std::process::{Command, Stdio};

use super::target::{Release, Target};

/// The driver and the devices of this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    version: (u32, u32),
    capabilities: Vec<(u32, u32)>,
}

impl Driver {
    /// What nvidia-smi says; `None` without it or without a device.
    pub(crate) fn of_this_machine() -> Option<Self> {
        let mut command = Command::new("nvidia-smi");
        command.args(["--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| Self::parse(&String::from_utf8_lossy(&output.stdout)))?
    }

    /// Lines of `580.65.06, 9.0`.
    fn parse(text: &str) -> Option<Self> {
        let pair = |text: &str| {
            let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        };
        let rows: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_once(',').and_then(|(v, c)| Some((pair(v)?, pair(c)?))))
            .collect();
        let version = rows.first()?.0;
        Some(Self { version, capabilities: rows.into_iter().map(|(_, capability)| capability).collect() })
    }

    /// What would not run here: no fault, since kernels may be for another machine.
    pub(crate) fn warnings(&self, release: Release, targets: &[Target]) -> Vec<String> {
        let mut warnings = Vec::new();
        let needed = oldest_driver(release);
        if self.version.0 < needed {
            warnings.push(format!(
                "the driver here is {}.{}, and kernels of nvcc {release} need {needed} or newer: update it, or build \
                 with an older toolkit (--toolkit PATH)",
                self.version.0, self.version.1
            ));
        }
        for &device in &self.capabilities {
            if !targets.iter().any(|target| target.runs_on(device)) {
                warnings.push(format!(
                    "none of the chosen targets runs on the device of compute capability {}.{} here: add to --arch, \
                     or take --arch all",
                    device.0, device.1
                ));
            }
        }
        warnings.dedup();
        warnings
    }
}

/// The oldest driver branch that loads machine code of a release ("CUDA Compatibility", minor version compatibility).
fn oldest_driver(release: Release) -> u32 {
    match release.0 {
        ..=11 => 450,
        12 => 525,
        _ => 580,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_and_devices_are_read() {
        let driver = Driver::parse("580.65.06, 9.0\n580.65.06, 8.6\n").unwrap();
        assert_eq!(driver, Driver { version: (580, 65), capabilities: vec![(9, 0), (8, 6)] });
        assert_eq!(Driver::parse("No devices were found\n"), None);
    }

    #[test]
    fn an_old_driver_and_a_device_without_a_target_are_told() {
        let driver = Driver::parse("535.104.05, 9.0\n535.104.05, 8.6\n").unwrap();
        let targets = Target::parse_list(&["sm_80"]).unwrap();
        let warnings = driver.warnings(Release(13, 0), &targets);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("535.104") && warnings[0].contains("580"));
        assert!(warnings[1].contains("9.0"));
        let all = Target::parse_list(&["all"]).unwrap();
        assert!(driver.warnings(Release(12, 8), &all).is_empty());
    }
}
