//! What the kernels are compiled for.

use std::fmt;

use super::error::{Error, Result};

/// A release of the CUDA toolkit, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A machine code (`sm_90a`) or a version of PTX (`compute_100`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// As nvcc writes it.
    pub(crate) name: &'static str,
    /// Compute capability that it is made for.
    pub(crate) capability: (u32, u32),
    /// The first nvcc that knows it.
    pub(crate) since: Release,
}

/// All targets, which are the default too.
///
/// Machine code for the capabilities that are in use, and PTX for the rest. An `a` target runs on its own capability
/// alone, so the PTX is of the first version after Hopper: it serves 10.3, 11.0 and whatever is newer than 12.x,
/// while PTX of 12.0 would leave the first two without an image.
pub(crate) const TARGETS: [Target; 7] = [
    Target { name: "sm_80", capability: (8, 0), since: Release(11, 0) },
    Target { name: "sm_86", capability: (8, 6), since: Release(11, 1) },
    Target { name: "sm_89", capability: (8, 9), since: Release(11, 8) },
    Target { name: "sm_90a", capability: (9, 0), since: Release(12, 0) },
    Target { name: "sm_100a", capability: (10, 0), since: Release(12, 8) },
    Target { name: "sm_120", capability: (12, 0), since: Release(12, 8) },
    Target { name: "compute_100", capability: (10, 0), since: Release(12, 8) },
];

impl Target {
    /// The targets of a list of names, each once, in the order of [`TARGETS`]; `all` is every one.
    pub(crate) fn parse_list<S: AsRef<str>>(names: &[S]) -> Result<Vec<Self>> {
        let mut chosen = [false; TARGETS.len()];
        for name in names.iter().map(|name| name.as_ref().trim()) {
            if name == "all" {
                chosen = [true; TARGETS.len()];
                continue;
            }
            let at = TARGETS.iter().position(|target| target.name == name);
            chosen[at.ok_or_else(|| unknown(name))?] = true;
        }
        Ok(TARGETS
            .into_iter()
            .zip(chosen)
            .filter_map(|(target, is_chosen)| is_chosen.then_some(target))
            .collect())
    }

    /// Whether nvcc makes PTX of it, which the driver compiles when the program starts.
    pub(crate) fn is_ptx(&self) -> bool {
        self.name.starts_with("compute_")
    }

    /// Whether the architecture has no successor that runs this code (`sm_90a`).
    fn is_specific(&self) -> bool {
        self.name.ends_with('a')
    }

    /// The end of the name of its files: `sm_90a.cubin`, `compute_100.ptx`.
    pub(crate) fn file_suffix(&self) -> String {
        format!("{}.{}", self.name, if self.is_ptx() { "ptx" } else { "cubin" })
    }

    /// What tells nvcc to make it.
    pub(crate) fn nvcc_flags(&self) -> Vec<String> {
        if self.is_ptx() {
            return vec!["-ptx".to_owned(), format!("-arch={}", self.name)];
        }
        let virtual_name = self.name.replace("sm_", "compute_");
        let code = format!("-gencode=arch={virtual_name},code={}", self.name);
        vec!["-cubin".to_owned(), code, "-Xptxas=-v".to_owned()]
    }

    /// Whether a device of this capability can run it.
    pub(crate) fn runs_on(&self, device: (u32, u32)) -> bool {
        match (self.is_ptx(), self.is_specific()) {
            (true, _) => device >= self.capability,
            (false, true) => device == self.capability,
            (false, false) => device.0 == self.capability.0 && device.1 >= self.capability.1,
        }
    }
}

fn unknown(given: &str) -> Error {
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let meant = TARGETS.iter().find(|target| digits(target.name) == digits(given));
    Error::UnknownTarget { given: given.to_owned(), meant: meant.map(|target| target.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<&'static str> {
        Target::parse_list(list).unwrap().iter().map(|target| target.name).collect()
    }

    #[test]
    fn a_list_is_ordered_and_holds_each_target_once() {
        assert_eq!(names(&["sm_90a", "sm_80", "sm_90a"]), ["sm_80", "sm_90a"]);
        assert_eq!(names(&["sm_80", "all"]).len(), TARGETS.len());
    }

    #[test]
    fn a_misspelt_target_is_told_what_was_meant() {
        for (given, meant) in [
            ("sm90a", "sm_90a"),
            ("sm_90", "sm_90a"),
            ("8.6", "sm_86"),
            ("120", "sm_120"),
            ("SM_89", "sm_89"),
        ] {
            let text = Target::parse_list(&[given]).unwrap_err().to_string();
            assert!(text.contains(given) && text.contains(&format!("write {meant}")), "{text}");
        }
        let text = Target::parse_list(&["hopper"]).unwrap_err().to_string();
        assert!(text.contains("sm_80, sm_86") && !text.contains("write"), "{text}");
    }

    #[test]
    fn every_capability_from_eight_on_has_an_image() {
        for device in
            [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0)]
        {
            assert!(TARGETS.iter().any(|target| target.runs_on(device)), "{device:?}");
        }
        assert!(!TARGETS.iter().any(|target| target.runs_on((7, 5))));
    }

    #[test]
    fn flags_name_the_virtual_and_the_real_architecture() {
        let [hopper] = Target::parse_list(&["sm_90a"]).unwrap()[..] else { panic!("one target") };
        assert!(hopper.nvcc_flags().contains(&"-gencode=arch=compute_90a,code=sm_90a".to_owned()));
        assert_eq!(hopper.file_suffix(), "sm_90a.cubin");
        let [ptx] = Target::parse_list(&["compute_100"]).unwrap()[..] else { panic!("one target") };
        assert!(ptx.nvcc_flags().contains(&"-arch=compute_100".to_owned()));
        assert_eq!(ptx.file_suffix(), "compute_100.ptx");
    }
}
