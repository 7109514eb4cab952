//! Peers that the engine is measured against, built from their registry packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache;
use crate::error::{Error, Result};
use crate::golden::python_with;
use crate::process::{output, root, run};

/// The source package that vendors llama.cpp.
const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";
const TARGETS: [&str; 5] =
    ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-completion", "llama-server"];

/// An installed llama.cpp.
pub(crate) struct LlamaCpp {
    /// A folder of programs, with the libraries that they load; two folders above it lie the sources.
    bin: PathBuf,
    /// How it was built, for the report.
    pub(crate) flags: String,
}

impl LlamaCpp {
    /// The peer of this name, installed.
    pub(crate) fn named(name: &str, model: &Path) -> Result<Self> {
        match name {
            "llama.cpp" => Self::install(model),
            _ => Err(Error::UnknownPeer(name.to_owned())),
        }
    }

    /// The installed one (`QUIRE_LLAMA_CPP_BIN` names a folder of programs that exist already), or builds it.
    ///
    /// A native build uses what the processor reports. Where the operating system does not let it (AMX in a
    /// guest), the programs die of an illegal instruction; then it is built for AVX-512 or AVX2 by name.
    fn install(model: &Path) -> Result<Self> {
        if let Some(bin) = std::env::var_os("QUIRE_LLAMA_CPP_BIN") {
            let bin = fs::canonicalize(&bin).map_err(Error::io(bin))?;
            return Ok(Self { bin, flags: "as installed".to_owned() });
        }
        let source = unpack()?;
        let native = Self::build(&source, "build-native", &["-DGGML_NATIVE=ON"])?;
        if native.works(model) {
            return Ok(native);
        }
        Self::build(&source, "build-named", &named_flags())
    }

    /// A program of it.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }

    /// The program that writes logits, built against the library and the headers of the same source.
    pub(crate) fn logits_program(&self) -> Result<PathBuf> {
        let program = cache::folder()?.join("llama_cpp_logits");
        let source = self.bin.join("../..");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(&program).arg(root().join("tests/tools/llama_cpp_logits.c"));
        for headers in ["include", "ggml/include"] {
            cc.arg("-I").arg(source.join(headers));
        }
        cc.arg("-L").arg(&self.bin).args(["-lllama", "-lggml", "-lggml-base"]);
        run(cc.arg(format!("-Wl,-rpath,{}", self.bin.display())))?;
        Ok(program)
    }

    /// What the program says of its version.
    pub(crate) fn version(&self, model: &Path) -> Result<String> {
        let text = output(
            self.program("llama-bench")
                .args(["-p", "8", "-n", "0", "-r", "1", "-o", "json", "-m"])
                .arg(model),
        )?;
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(format!("{} build {}", rows[0]["build_commit"], rows[0]["build_number"]))
    }

    fn build(source: &Path, folder: &str, flags: &[&str]) -> Result<Self> {
        let build = source.join(folder);
        let bin = build.join("bin");
        let built = Self { bin: bin.clone(), flags: flags.join(" ") };
        if TARGETS.iter().all(|target| bin.join(target).exists()) {
            return Ok(built);
        }
        let python = python_with(&["cmake", "ninja"])?;
        let tools = python.parent().expect("python lies in a folder of programs");
        let mut configure = Command::new(tools.join("cmake"));
        configure.arg("-S").arg(source).arg("-B").arg(&build).args(["-G", "Ninja"]);
        configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", tools.join("ninja").display()));
        configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]);
        run(configure.args(["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF"]).args(flags))?;
        run(Command::new(tools.join("ninja")).arg("-C").arg(&build).args(TARGETS))?;
        Ok(built)
    }

    fn works(&self, model: &Path) -> bool {
        let mut probe = self.program("llama-bench");
        probe.args(["-p", "8", "-n", "1", "-r", "1", "-m"]).arg(model);
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

/// The source of llama.cpp, unpacked once.
fn unpack() -> Result<PathBuf> {
    let folder = cache::folder()?.join("peers").join(LLAMA_CPP.replace("==", "-"));
    let source = folder.join("source/vendor/llama.cpp");
    if source.join("CMakeLists.txt").exists() {
        return Ok(source);
    }
    let unpacked = folder.join("source");
    fs::create_dir_all(&unpacked).map_err(Error::io(&unpacked))?;
    // pip asks the package for its metadata, which takes its build system, and that takes cmake.
    let python = python_with(&["scikit-build-core", "cmake", "ninja"])?;
    let tools = python.parent().into_iter().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(tools.chain(std::env::split_paths(&path)));
    run(Command::new(&python)
        .env("PATH", path.expect("folders of programs have no colons"))
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--no-build-isolation", "--no-binary=:all:", "-d"])
        .arg(&folder)
        .arg(LLAMA_CPP))?;
    let archive = folder.join(format!(
        "{}.tar.gz",
        LLAMA_CPP.replace("==", "-").replace("llama-cpp-python", "llama_cpp_python")
    ));
    run(Command::new("tar").arg("-xf").arg(&archive).args(["--strip-components=1", "-C"]).arg(&unpacked))?;
    Ok(source)
}

/// Flags for what the processor has, matrix tiles left out.
fn named_flags() -> Vec<&'static str> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| cpuinfo.split_whitespace().any(|word| word == flag);
    let mut flags = vec!["-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON"];
    for (name, flag) in [
        ("avx", "-DGGML_AVX=ON"),
        ("avx2", "-DGGML_AVX2=ON"),
        ("bmi2", "-DGGML_BMI2=ON"),
        ("fma", "-DGGML_FMA=ON"),
        ("f16c", "-DGGML_F16C=ON"),
        ("avx512f", "-DGGML_AVX512=ON"),
        ("avx512vbmi", "-DGGML_AVX512_VBMI=ON"),
        ("avx512_vnni", "-DGGML_AVX512_VNNI=ON"),
        ("avx512_bf16", "-DGGML_AVX512_BF16=ON"),
    ] {
        if has(name) {
            flags.push(flag);
        }
    }
    flags
}
