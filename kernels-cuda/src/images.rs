//! Which embedded image of a kernel family runs on a device.

/// A compiled kernel family.
pub(crate) struct Image {
    pub(crate) family: &'static str,
    /// `sm_90a` is machine code, `compute_100` is PTX.
    pub(crate) arch: &'static str,
    pub(crate) data: &'static [u8],
}

mod embedded {
    use super::Image;

    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

/// The images of this program.
pub(crate) fn embedded() -> &'static [Image] {
    embedded::IMAGES
}

/// How an image fits a device, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// PTX of this compute capability, compiled by the driver.
    Ptx((u32, u32)),
    /// Machine code of an older minor version, which newer ones run.
    Older(u32),
    /// Machine code of the device's own version.
    Exact,
    /// The same, with the instructions that only this version has.
    Specific,
}

/// The best of `images` for the family on a device.
pub(crate) fn select<'a>(images: &'a [Image], family: &str, device: (u32, u32)) -> Option<&'a Image> {
    let of_family = images.iter().filter(|image| image.family == family);
    of_family
        .filter_map(|image| Some((fit(image.arch, device)?, image)))
        .max_by_key(|(fit, _)| *fit)
        .map(|(_, i)| i)
}

/// The architectures that a family is built for, in words.
pub(crate) fn built(images: &[Image], family: &str) -> String {
    let archs: Vec<&str> = images.iter().filter(|i| i.family == family).map(|i| i.arch).collect();
    if archs.is_empty() { "none".to_owned() } else { archs.join(", ") }
}

/// What `cargo xtask build-kernels` can build, the most general machine code of each generation first, PTX last.
const TARGETS: [&str; 7] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120", "compute_100"];

/// What to build for a device: code for its own version, else the first that runs there. `None`: the kernels are for
/// newer devices.
pub(crate) fn arch_of(device: (u32, u32)) -> Option<&'static str> {
    let is_own = |arch: &&str| fit(arch, device) >= Some(Fit::Exact);
    let runs = |arch: &&str| fit(arch, device).is_some();
    TARGETS.into_iter().find(is_own).or_else(|| TARGETS.into_iter().find(runs))
}

/// How an architecture fits; `None`: it does not run there. Machine code runs on its major version, from its
/// minor version on; with the suffix `a` on its own version alone, with `f` like one without, of a family that
/// starts with it. PTX runs on everything from its version on.
fn fit(arch: &str, (major, minor): (u32, u32)) -> Option<Fit> {
    let (kind, version) = arch.split_once('_')?;
    let number = version.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &version[number.len()..];
    let number: u32 = number.parse().ok()?;
    let built = (number / 10, number % 10);
    match (kind, suffix) {
        ("sm", "a") => (built == (major, minor)).then_some(Fit::Specific),
        ("sm", "" | "f") if built == (major, minor) => Some(Fit::Exact),
        ("sm", "" | "f") => (built.0 == major && built.1 < minor).then_some(Fit::Older(built.1)),
        ("compute", "") => (built <= (major, minor)).then_some(Fit::Ptx(built)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(archs: &[&'static str], device: (u32, u32), expected: Option<&str>) {
        let images: Vec<Image> = archs.iter().map(|&arch| Image { family: "f", arch, data: &[] }).collect();
        assert_eq!(select(&images, "f", device).map(|i| i.arch), expected, "{archs:?} on {device:?}");
        assert!(select(&images, "g", device).is_none(), "another family has no images");
    }

    #[test]
    fn the_most_specific_image_that_runs_is_chosen() {
        let all = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120", "compute_100"];
        check(&all, (8, 0), Some("sm_80"));
        check(&all, (8, 6), Some("sm_86"));
        check(&all, (8, 7), Some("sm_86"));
        check(&all, (8, 9), Some("sm_89"));
        check(&all, (9, 0), Some("sm_90a"));
        check(&all, (10, 0), Some("sm_100a"));
        check(&all, (10, 3), Some("compute_100"));
        check(&all, (12, 1), Some("sm_120"));
        check(&all, (13, 0), Some("compute_100"));
        check(&all, (7, 5), None);
    }

    #[test]
    fn what_needs_one_version_runs_on_no_other() {
        check(&["sm_90a"], (9, 1), None);
        check(&["sm_90", "sm_90a"], (9, 0), Some("sm_90a"));
        check(&["compute_80", "sm_80"], (9, 0), Some("compute_80"));
        check(&["compute_80", "compute_90"], (10, 3), Some("compute_90"));
        check(&["compute_90a", "nonsense", "sm_", "sm_x"], (9, 0), None);
        check(&["sm_100f"], (10, 3), Some("sm_100f"));
    }

    #[test]
    fn what_to_build_is_known_to_the_command_that_builds_it_and_runs_on_the_device() {
        let source = include_str!("../../xtask/src/kernels/target.rs");
        let rows = source.split("Target { name: \"").skip(1);
        let known: Vec<&str> = rows.filter_map(|row| Some(row.split_once('"')?.0)).collect();
        assert_eq!(known, TARGETS, "the list of build-kernels is another");
        for (device, expected) in [
            ((8, 0), "sm_80"),
            ((8, 6), "sm_86"),
            ((8, 7), "sm_80"),
            ((8, 9), "sm_89"),
            ((9, 0), "sm_90a"),
            ((10, 0), "sm_100a"),
            ((10, 3), "compute_100"),
            ((11, 0), "compute_100"),
            ((12, 0), "sm_120"),
            ((12, 1), "sm_120"),
            ((13, 0), "compute_100"),
        ] {
            let arch = arch_of(device).unwrap();
            assert_eq!(arch, expected, "{device:?}");
            check(&[arch], device, Some(arch));
        }
        assert_eq!(arch_of((7, 5)), None);
    }
}
