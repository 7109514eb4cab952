//! `--verify`: what the compiled kernels need, out of the compiler's log.

use std::fs;

use super::error::{Error, Result};
use super::image::Image;

use crate::print::out;

/// What ptxas says of a kernel, or of a function that was not inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) registers: u32,
    /// Static shared memory; what a launch adds is not known here.
    pub(crate) shared_bytes: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) spill_bytes: u32,
}

/// Prints a table of all kernels and fails where a hot one spills.
pub(crate) fn verify(images: &[&Image<'_>]) -> Result<()> {
    out!(
        "{:44} {:>8} {:>9} {:>8} {:>7} {:>7}  hot",
        "kernel",
        "target",
        "registers",
        "shared B",
        "stack B",
        "spill B"
    );
    let mut spills = Vec::new();
    let mut logs = Vec::new();
    for image in images.iter().filter(|image| !image.target.is_ptx()) {
        let text = fs::read_to_string(image.log()).map_err(|_| Error::NoLog(image.log()))?;
        let kernels = parse(&text);
        kernels.iter().for_each(|kernel| print(kernel, image));
        spills.extend(
            spilling(&kernels, &image.family.hot).map(|name| format!("{name} ({})", image.target.name)),
        );
        logs.push((&image.family.name, &image.family.hot, kernels));
    }
    for (family, hot, _) in &logs {
        let kernels = || logs.iter().filter(|log| log.0 == *family).flat_map(|log| &log.2);
        if let Some(pattern) =
            hot.iter().find(|pattern| !kernels().any(|kernel| matches(pattern, &kernel.name)))
        {
            return Err(Error::NoHotKernel { family: family.to_string(), pattern: pattern.clone() });
        }
    }
    if spills.is_empty() { Ok(()) } else { Err(Error::Spills(spills)) }
}

fn print(kernel: &Resources, image: &Image<'_>) {
    // The log gives a function's registers within the kernels that call it.
    if !kernel.is_kernel && kernel.stack_bytes == 0 && kernel.spill_bytes == 0 {
        return;
    }
    let name = if kernel.is_kernel { kernel.name.clone() } else { format!("{} (function)", kernel.name) };
    let hot = if is_hot(kernel, &image.family.hot) { "hot" } else { "" };
    out!(
        "{name:44} {:>8} {:>9} {:>8} {:>7} {:>7}  {hot}",
        image.target.name,
        kernel.registers,
        kernel.shared_bytes,
        kernel.stack_bytes,
        kernel.spill_bytes
    );
}

fn is_hot(kernel: &Resources, hot: &[String]) -> bool {
    hot.iter().any(|pattern| matches(pattern, &kernel.name))
}

/// The hot kernels that spill, and the functions that do beside them: the log does not say who calls a function.
fn spilling<'a>(kernels: &'a [Resources], hot: &'a [String]) -> impl Iterator<Item = &'a str> {
    let has_hot = kernels.iter().any(|kernel| is_hot(kernel, hot));
    let counts = move |kernel: &&Resources| if kernel.is_kernel { is_hot(kernel, hot) } else { has_hot };
    kernels.iter().filter(|kernel| kernel.spill_bytes > 0).filter(counts).map(|kernel| kernel.name.as_str())
}

/// Reads what `ptxas -v` prints.
pub(crate) fn parse(log: &str) -> Vec<Resources> {
    let mut kernels: Vec<Resources> = Vec::new();
    let mut kernel_name = "";
    let mut current = None;
    for line in log.lines() {
        let info =
            line.trim_start().strip_prefix("ptxas info").map(|rest| rest.trim_start_matches([' ', ':']));
        if let Some(rest) = info.and_then(|info| info.strip_prefix("Compiling entry function ")) {
            kernel_name = rest.split('\'').nth(1).unwrap_or_default();
        } else if let Some(name) = info.and_then(|info| info.strip_prefix("Function properties for ")) {
            let is_kernel = name == kernel_name;
            kernels.push(Resources { name: name.to_owned(), is_kernel, ..Resources::default() });
            current = Some(kernels.len() - 1);
        } else if let Some(kernel) = current.and_then(|i| kernels.get_mut(i)) {
            add_line(kernel, line);
        }
    }
    kernels
}

/// `... Used 32 registers, 1024 bytes smem`, or `16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads`.
fn add_line(kernel: &mut Resources, line: &str) {
    for part in line.split([',', ':']).map(str::trim) {
        let part = part.strip_prefix("Used ").unwrap_or(part);
        let Some((number, what)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        match what {
            "registers" => kernel.registers = number,
            "bytes smem" => kernel.shared_bytes = number,
            "bytes stack frame" => kernel.stack_bytes = number,
            "bytes spill stores" | "bytes spill loads" => kernel.spill_bytes += number,
            _ => {}
        }
    }
}

/// Whether a name is of the form of a pattern, in which `*` stands for any letters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices().map(|(i, _)| &tail[i..]).chain([""]).any(|tail| matches(rest, tail))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spilly' for 'sm_90a'
ptxas info    : Function properties for spilly
    13144 bytes stack frame, 16236 bytes spill stores, 27420 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 13144 bytes cumulative stack size
ptxas info    : Compile time = 3503.478 ms
ptxas info    : Compiling entry function 'copy_bf16' for 'sm_90a'
ptxas info    : Function properties for copy_bf16
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 3.215 ms
ptxas info    : Function properties for _Z1ff
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";

    fn patterns(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_log_gives_each_kernel_and_function_its_numbers() {
        let kernels = parse(LOG);
        let of = |name: &str| kernels.iter().find(|kernel| kernel.name == name).unwrap().clone();
        let spilly = of("spilly");
        assert_eq!((spilly.registers, spilly.stack_bytes, spilly.spill_bytes), (32, 13_144, 43_656));
        let copy = of("copy_bf16");
        assert_eq!(
            (copy.registers, copy.shared_bytes, copy.spill_bytes, copy.is_kernel),
            (10, 1024, 0, true)
        );
        assert!(!of("_Z1ff").is_kernel);
        assert_eq!(kernels.len(), 3);
    }

    #[test]
    fn what_spills_counts_only_beside_a_hot_kernel() {
        let kernels = parse(LOG);
        let names = |hot: &[&str]| {
            let hot = patterns(hot);
            spilling(&kernels, &hot).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(names(&[]).is_empty());
        assert_eq!(names(&["copy_*"]), ["_Z1ff"]);
        assert_eq!(names(&["spilly"]), ["spilly", "_Z1ff"]);
    }

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, is_match) in [
            ("rms_norm_*", "rms_norm_bf16", true),
            ("rms_norm_*", "rms_norm", false),
            ("*_f16", "add_f16", true),
            ("a*b*c", "a_b_b_c", true),
            ("a*b*c", "a_c", false),
            ("*", "", true),
            ("add", "add_f16", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
