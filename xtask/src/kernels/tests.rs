//! Whole builds with a stand-in for nvcc.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use super::fake::FakeNvcc;
use super::*;

/// A folder of sources, one of images, and a compiler.
struct Bench {
    folder: tempfile::TempDir,
    nvcc: FakeNvcc,
}

impl Bench {
    fn new(sources: &[(&str, &str)]) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), nvcc: FakeNvcc::new("13.0") };
        fs::create_dir(bench.source()).unwrap();
        sources.iter().for_each(|(name, text)| bench.write(name, text));
        bench
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("cuda")
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.source().join(name), text).unwrap();
    }

    fn options(&self, arch: &[&str]) -> Options {
        Options {
            arch: arch.iter().map(ToString::to_string).collect(),
            toolkit: self.nvcc.root().into(),
            verify: false,
            jobs: Some(2),
            out: Some(self.out()),
            source: Some(self.source()),
            dry_run: false,
            line_info: false,
        }
    }

    fn build(&self, arch: &[&str]) -> Result<(), String> {
        run(&self.options(arch)).map_err(|error| error.to_string())
    }

    /// The images that compilers made, and when.
    fn images(&self) -> BTreeMap<String, SystemTime> {
        let entries = fs::read_dir(self.out()).into_iter().flatten().flatten();
        let is_image = |name: &String| name.ends_with(".cubin") || name.ends_with(".ptx");
        let named =
            entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap()));
        named
            .filter(|(name, _)| is_image(name))
            .map(|(name, meta)| (name, meta.modified().unwrap()))
            .collect()
    }

    fn image_names(&self) -> Vec<String> {
        self.images().into_keys().collect()
    }
}

#[test]
fn each_family_is_compiled_once_for_each_target() {
    let bench = Bench::new(&[("norm.cu", "a"), ("rope.cu", "b")]);
    bench.build(&["sm_80", "sm_90a", "compute_100"]).unwrap();
    let expected = [
        "norm.compute_100.ptx",
        "norm.sm_80.cubin",
        "norm.sm_90a.cubin",
        "rope.compute_100.ptx",
        "rope.sm_80.cubin",
        "rope.sm_90a.cubin",
    ];
    assert_eq!(bench.image_names(), expected);
    assert_eq!(bench.nvcc.num_calls(), 6);
    let text = fs::read_to_string(bench.out().join("norm.sm_90a.cubin")).unwrap();
    assert!(text.contains("-std=c++17 -O3 -cubin -gencode=arch=compute_90a,code=sm_90a"), "{text}");
}

#[test]
fn compilers_run_side_by_side() {
    let bench = Bench::new(&[("a.cu", ""), ("b.cu", ""), ("c.cu", ""), ("d.cu", "")]);
    bench.build(&["sm_80", "sm_86"]).unwrap();
    let mut running = 0_i32;
    let depths = bench
        .nvcc
        .calls()
        .iter()
        .map(|line| {
            running += if line.starts_with("begin") { 1 } else { -1 };
            running
        })
        .collect::<Vec<_>>();
    assert_eq!(depths.iter().max(), Some(&2), "{depths:?}");
}

#[test]
fn what_has_not_changed_is_not_compiled_again() {
    let bench = Bench::new(&[("norm.cu", "#include \"common.cuh\""), ("rope.cu", ""), ("common.cuh", "one")]);
    let calls = |what: &str, expected: usize| {
        let before = bench.nvcc.num_calls();
        bench.build(&["sm_80", "sm_90a"]).unwrap();
        assert_eq!(bench.nvcc.num_calls() - before, expected, "{what}");
    };
    calls("first", 4);
    calls("nothing changed", 0);
    bench.write("common.cuh", "two");
    calls("a header of one family changed", 2);
    bench.write("rope.cu", "// nvcc: --use_fast_math");
    calls("a family's flags changed", 2);
    bench.write("rope.cu", "// hot: rope_*\n// nvcc: --use_fast_math");
    calls("a kernel was marked hot", 0);
    fs::write(bench.out().join("norm.sm_80.cubin"), "cut off").unwrap();
    calls("an image was damaged", 1);
    fs::remove_file(bench.out().join("rope.sm_90a.log")).unwrap();
    calls("a log was lost", 1);
    calls("nothing changed", 0);
}

#[test]
fn a_build_with_nothing_to_do_touches_nothing() {
    let bench = Bench::new(&[("norm.cu", "")]);
    bench.build(&["sm_80"]).unwrap();
    let time = || (bench.images(), fs::metadata(bench.out()).unwrap().modified().unwrap());
    let before = time();
    bench.build(&["sm_80"]).unwrap();
    assert_eq!(time(), before);
}

#[test]
fn an_image_that_comes_out_the_same_keeps_its_time() {
    let bench = Bench::new(&[("norm.cu", "")]);
    bench.build(&["sm_80"]).unwrap();
    let before = bench.images();
    fs::remove_file(bench.out().join("norm.sm_80.stamp")).unwrap();
    bench.build(&["sm_80"]).unwrap();
    assert_eq!(bench.nvcc.num_calls(), 2);
    assert_eq!(bench.images(), before);
}

#[test]
fn a_dry_run_compiles_nothing() {
    let bench = Bench::new(&[("norm.cu", "")]);
    run(&Options { dry_run: true, ..bench.options(&["all"]) }).unwrap();
    assert_eq!(bench.nvcc.num_calls(), 0);
    assert!(bench.image_names().is_empty());
}

#[test]
fn a_family_that_fails_leaves_no_image_and_the_others_are_built() {
    let bench = Bench::new(&[("bad.cu", "#error"), ("good.cu", "")]);
    let options = Options { jobs: Some(1), ..bench.options(&["sm_80", "sm_90a"]) };
    let text = run(&options).unwrap_err().to_string();
    assert!(text.contains("bad sm_80") && text.contains("bad sm_90a") && !text.contains("good"), "{text}");
    assert_eq!(bench.image_names(), ["good.sm_80.cubin", "good.sm_90a.cubin"]);
    assert!(!bench.out().join("partial").exists());
    let begun = bench.nvcc.calls().iter().filter(|line| line.contains("bad.cu")).count();
    assert_eq!(begun, 1, "its second target is left out");
}

#[test]
fn a_compiler_that_writes_nothing_is_a_failure_of_that_family() {
    let bench = Bench::new(&[("empty.cu", "#nothing"), ("good.cu", "")]);
    let text = bench.build(&["sm_80"]).unwrap_err();
    assert!(text.contains("not built: empty sm_80"), "{text}");
    assert_eq!(bench.image_names(), ["good.sm_80.cubin"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_told_by_the_flag() {
    let bench = Bench::new(&[("norm.cu", "")]);
    let file = bench.folder.path().join("file");
    fs::write(&file, "").unwrap();
    for out in [file.join("below"), file, PathBuf::from("/proc/images")] {
        let options = Options { out: Some(out.clone()), ..bench.options(&["sm_80"]) };
        let text = run(&options).unwrap_err().to_string();
        assert!(text.contains(&out.display().to_string()) && text.contains("--out FOLDER"), "{text}");
    }
}

#[test]
fn no_image_of_older_sources_stays() {
    let bench = Bench::new(&[("norm.cu", "old"), ("rope.cu", "")]);
    bench.build(&["sm_80", "sm_90a"]).unwrap();
    bench.write("norm.cu", "new");
    bench.build(&["sm_90a"]).unwrap();
    assert_eq!(bench.image_names(), ["norm.sm_90a.cubin", "rope.sm_80.cubin", "rope.sm_90a.cubin"]);
    bench.write("norm.cu", "#error");
    bench.build(&["sm_90a"]).unwrap_err();
    bench.build(&["sm_90a"]).unwrap_err();
    assert_eq!(bench.image_names(), ["rope.sm_80.cubin", "rope.sm_90a.cubin"]);
}

#[test]
fn the_images_of_a_source_that_is_gone_are_removed() {
    let bench = Bench::new(&[("norm.cu", ""), ("rope.cu", "")]);
    bench.build(&["sm_80"]).unwrap();
    fs::remove_file(bench.source().join("rope.cu")).unwrap();
    bench.build(&["sm_80"]).unwrap();
    assert_eq!(bench.image_names(), ["norm.sm_80.cubin"]);
    assert!(!bench.out().join("rope.sm_80.stamp").exists());
}

/// What ptxas prints for one kernel, as lines that the stand-in repeats.
fn log_of(kernel: &str, spill: u32) -> String {
    format!(
        "//log ptxas info    : Compiling entry function '{kernel}' for 'sm_80'\n\
         //log ptxas info    : Function properties for {kernel}\n\
         //log     0 bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads\n\
         //log ptxas info    : Used 10 registers\n"
    )
}

#[test]
fn verify_fails_on_spills_of_hot_kernels_alone_and_of_cached_builds_too() {
    let spills = |hot: &str| format!("// hot: {hot}\n{}{}", log_of("fast", 8), log_of("slow", 8));
    let bench = Bench::new(&[("norm.cu", &spills("fast")), ("rope.cu", &log_of("rare", 8))]);
    let verify = || {
        let options = Options { verify: true, ..bench.options(&["sm_80", "compute_100"]) };
        run(&options).map_err(|error| error.to_string())
    };
    for _ in 0..2 {
        let text = verify().unwrap_err();
        assert!(text.contains("fast (sm_80)") && !text.contains("slow") && !text.contains("rare"), "{text}");
    }
    assert_eq!(bench.nvcc.num_calls(), 4);
    bench.write("norm.cu", &format!("// hot: fast\n{}", log_of("fast", 0)));
    verify().unwrap();
    bench.write("norm.cu", &format!("// hot: fats\n{}", log_of("fast", 0)));
    let text = verify().unwrap_err();
    assert!(text.contains("norm.cu") && text.contains("`fats`"), "{text}");
}

#[test]
fn all_faults_are_told_before_anything_is_compiled() {
    let bench = Bench::new(&[("norm.cu", "")]);
    let options =
        Options { toolkit: "/nowhere".into(), source: Some("/nowhere".into()), ..bench.options(&["sm90a"]) };
    let text = run(&options).unwrap_err().to_string();
    for expected in ["/nowhere/bin/nvcc is not there", "write sm_90a", "holds no .cu file"] {
        assert!(text.contains(expected), "{text}");
    }
    let old = FakeNvcc::new("12.4");
    let options = Options { toolkit: old.root().into(), ..bench.options(&["sm_80", "sm_120"]) };
    let text = run(&options).unwrap_err().to_string();
    assert!(text.contains("nvcc 12.4 knows no sm_120"), "{text}");
    assert!(bench.image_names().is_empty());
}

#[test]
fn a_mirror_holds_the_chosen_images_alone_and_keeps_what_is_the_same() {
    let bench = Bench::new(&[("norm.cu", ""), ("rope.cu", "")]);
    bench.build(&["sm_80", "sm_90a"]).unwrap();
    let copy = bench.folder.path().join("copy");
    let names = || {
        let entries = fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> =
            entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap())).collect();
        names.sort();
        names
    };
    build::mirror(&bench.out(), &copy, |name| name.ends_with(".cubin")).unwrap();
    assert_eq!(names().len(), 4);
    build::mirror(&bench.out(), &copy, |name| name.ends_with(".sm_80.cubin")).unwrap();
    let before = names();
    assert_eq!(before.iter().map(|row| &row.0).collect::<Vec<_>>(), ["norm.sm_80.cubin", "rope.sm_80.cubin"]);
    build::mirror(&bench.out(), &copy, |name| name.ends_with(".sm_80.cubin")).unwrap();
    assert_eq!(names(), before);
}

#[test]
fn a_missing_host_compiler_is_named() {
    let text = host_compiler(&Places::default(), None).unwrap_err().to_string();
    assert!(text.contains("no g++") && text.contains("NVCC_CCBIN"), "{text}");
    let text = host_compiler(&Places::default(), Some("clang++-99")).unwrap_err().to_string();
    assert!(text.contains("no clang++-99"), "{text}");
    host_compiler(&Places::default(), Some("/bin/sh")).unwrap();
}
