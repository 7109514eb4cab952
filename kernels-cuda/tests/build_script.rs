//! Where the build script looks for kernel images, and what it says when there are none.

use std::fs;
use std::path::Path;

#[allow(dead_code)]
#[path = "../build.rs"]
mod script;

#[test]
fn a_named_folder_must_be_there() {
    let place = tempfile::tempdir().unwrap();
    let named = |path: &Path| script::folder(Some(path.into()), Path::new("/nowhere/crate"));
    assert_eq!(named(place.path()).unwrap(), place.path());
    let missing = place.path().join("kernals");
    let text = named(&missing).unwrap_err();
    assert!(text.contains(&format!("QUIRE_CUDA_KERNELS={}", missing.display())), "{text}");
    assert!(!missing.exists(), "a mistyped folder is not made");
    let file = place.path().join("norm.sm_80.cubin");
    fs::write(&file, "").unwrap();
    assert!(named(&file).unwrap_err().contains("no folder"));
    let text = named(Path::new("target/kernels-cuda")).unwrap_err();
    assert!(text.contains("relative = true") && text.contains("whole path"), "{text}");
}

#[test]
fn without_a_name_it_is_the_workspaces() {
    let workspace = tempfile::tempdir().unwrap();
    for named in [None, Some("".into())] {
        let folder = script::folder(named, &workspace.path().join("kernels-cuda")).unwrap();
        assert_eq!(folder, workspace.path().join("target/kernels-cuda"));
        assert!(folder.is_dir());
    }
}

#[test]
fn a_program_without_kernels_is_warned_of() {
    let text = script::warning(&[], Path::new("/a/folder")).unwrap();
    assert!(text.contains("/a/folder") && text.contains("cargo xtask build-kernels"), "{text}");
    assert_eq!(script::warning(&["norm.sm_80.cubin".into()], Path::new("/a/folder")), None);
}
