//! `quire tune-kernels`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use quire_kernels::DType;
use quire_kernels_cuda::{CudaConfig, KernelTuning, ProductShape, TuneOptions, TunedProduct, tune};

use super::bench::kernels::dtype_in;
use super::bench::kernels::linear::Product;
use super::bench::kernels::shapes::Shapes;
use super::load::check_apart;
use crate::backend::{BackendError, BackendOptions, cuda_config, split_device};
use crate::error::{Error, Result};

/// Most sequences that a step samples for, hence rows of the head's product.
const MAX_HEAD_TOKENS: u32 = 256;

/// Numbers of tokens that are common: the sizes that decode steps are padded to, beyond those for which own kernels are
/// faster, and powers of two for prompts.
const NUM_TOKENS: [u32; 20] =
    [20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512, 1024, 2048, 8192];

/// Products of many tokens are cuBLASLt's, which knows several algorithms for each and guesses which is the fastest. This
/// measures its guesses, for the matrices of a model and common numbers of tokens, and writes those that are better than
/// the first to a file for --kernel-tuning. It holds for this GPU and this version of cuBLASLt. Takes a minute or two
/// and gigabytes of the GPU's memory; nothing of it happens when a model is started.
#[derive(Args)]
pub(crate) struct TuneArgs {
    /// Whose matrices: those of Qwen2.5 0.5b or 7b, or of a model's config.json or its folder; both known ones if not
    /// given.
    #[arg(value_name = "0.5b|7b|FILE")]
    shapes: Vec<String>,
    /// Where the result goes.
    #[arg(long, value_name = "FILE", default_value = "kernel-tuning.json")]
    output: PathBuf,
    /// Tokens of the products.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = NUM_TOKENS,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    num_tokens: Vec<u32>,
    /// The GPU: cuda or cuda:N.
    #[arg(long, value_name = "cuda|cuda:N", default_value = "cuda")]
    device: String,
    /// What activations are computed in: bf16 or f16.
    #[arg(long, value_name = "DTYPE", default_value = "bf16", value_parser = dtype_in(is_half))]
    dtype: DType,
    /// Guesses of the library that are measured.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    candidates: u16,
    /// Measurements of each, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

/// What the library's products are in.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let config = config(args)?;
    let products = products(args)?;
    // Before minutes of measuring.
    check_read(args)?;
    KernelTuning::check_writable(&args.output)?;
    let options = TuneOptions { max_candidates: args.candidates.into(), num_rounds: args.rounds.into() };
    let mut told = Ok(());
    let mut tell = |product: &ProductShape, tuned: Option<&TunedProduct>| {
        told = std::mem::replace(&mut told, Ok(())).and_then(|()| write_product(product, tuned));
    };
    let tuning = tune(config, &products, options, &mut tell).map_err(|error| unusable(args, error))?;
    tuning.write(&args.output)?;
    told.map_err(|source| Error::Write { path: "standard output".into(), source })?;
    let gain = |tuned: &TunedProduct| 1.0 - tuned.after_us / tuned.before_us;
    let most = tuning.products.iter().map(gain).fold(0.0, f64::max);
    eprintln!(
        "{} of {} products are faster, by up to {:.0} %: use --kernel-tuning {}",
        tuning.products.len(),
        products.len(),
        100.0 * most,
        args.output.display()
    );
    Ok(())
}

/// Refuses to write over a model's config.json.
fn check_read(args: &TuneArgs) -> Result<()> {
    let read = args.shapes.iter().flat_map(|shapes| [shapes.into(), Path::new(shapes).join("config.json")]);
    let read: Vec<PathBuf> = read.filter(|path| !path.is_dir()).collect();
    check_apart(&args.output, read.iter().map(PathBuf::as_path))
}

fn config(args: &TuneArgs) -> Result<CudaConfig> {
    match split_device(&args.device)? {
        ("cuda", ordinal) => {
            let ordinal = ordinal.unwrap_or(0);
            Ok(cuda_config(&BackendOptions { ordinal, dtype: Some(args.dtype), ..BackendOptions::default() }))
        }
        _ => Err(BackendError::NotTunable { given: args.device.clone() }.into()),
    }
}

/// Each product once, the small ones first.
fn products(args: &TuneArgs) -> Result<Vec<ProductShape>> {
    let known = ["0.5b".to_owned(), "7b".to_owned()];
    let names = if args.shapes.is_empty() { &known[..] } else { &args.shapes };
    let mut products = Vec::new();
    for name in names {
        for product in Product::all(&Shapes::open(name)?) {
            let fits = |num_tokens: &&u32| !product.is_head || **num_tokens <= MAX_HEAD_TOKENS;
            products
                .extend(args.num_tokens.iter().filter(fits).map(|&n| product.dense(n as usize, args.dtype)));
        }
    }
    products.sort_by_key(|p| (p.rows * p.columns, p.num_tokens));
    products.dedup();
    Ok(products)
}

fn write_product(product: &ProductShape, tuned: Option<&TunedProduct>) -> io::Result<()> {
    let ProductShape { rows, columns, num_tokens, out_dtype, .. } = product;
    let mut out = io::stdout().lock();
    write!(out, "{rows}x{columns} of {num_tokens} tokens to {out_dtype}: ")?;
    match tuned {
        Some(TunedProduct { before_us, after_us, first_answer, algorithm, .. }) => {
            writeln!(out, "{before_us} us ({first_answer}), {after_us} us ({algorithm})")
        }
        None => writeln!(out, "the first answer is the fastest"),
    }
}

fn unusable(args: &TuneArgs, error: quire_kernels_cuda::Error) -> Error {
    BackendError::NotTuned { name: args.device.clone(), source: Box::new(error) }.into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::error::with_causes;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        tune: TuneArgs,
    }

    fn parse(line: &str) -> TuneArgs {
        let words = std::iter::once("quire").chain(line.split_whitespace());
        Only::try_parse_from(words).expect("the arguments are right").tune
    }

    #[test]
    fn each_product_is_measured_once_and_the_head_for_few_tokens_only() {
        let all = products(&parse("0.5b 0.5b --num-tokens 64,2048")).unwrap();
        let shapes: Vec<_> = all.iter().map(|p| (p.rows, p.columns, p.num_tokens, p.has_bias)).collect();
        assert_eq!(shapes.len(), 9, "{shapes:?}");
        assert!(shapes.contains(&(1152, 896, 2048, true)) && shapes.contains(&(151_936, 896, 64, false)));
        assert!(!shapes.contains(&(151_936, 896, 2048, false)));
        let dtypes: Vec<_> = all.iter().map(|p| (p.dtype, p.out_dtype, p.rows)).collect();
        assert!(dtypes.contains(&(DType::BF16, DType::F32, 151_936)));
        assert!(!products(&parse("")).unwrap().is_empty());
    }

    #[test]
    fn only_a_gpu_is_tuned() {
        assert_eq!(config(&parse("--device cuda:3 --dtype f16")).unwrap().ordinal, 3);
        assert_eq!(config(&parse("--dtype f16")).unwrap().activation_dtype, DType::F16);
        for device in ["cpu", "auto"] {
            let text = config(&parse(&format!("--device {device}"))).unwrap_err().to_string();
            assert!(text.contains(device) && text.contains("cuda or cuda:N"), "{text}");
            assert!(!text.contains("known"), "{text}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_named_and_the_cpu_is_not_proposed() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("tuning.json");
        // No machine has a device of that number.
        let args = parse(&format!("0.5b --device cuda:999 --output {}", output.display()));
        let text = with_causes(&run(&args).unwrap_err());
        assert!(text.contains("`cuda:999`") && !text.contains("cpu"), "{text}");
        assert!(!output.exists());
    }

    #[test]
    fn the_shapes_that_are_read_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, "{}").unwrap();
        for shapes in [folder.path(), &config] {
            let line = format!("{} --device cuda:999 --output {}", shapes.display(), config.display());
            assert!(matches!(check_read(&parse(&line)), Err(Error::OutputIsInput { .. })), "{line}");
        }
        assert!(check_read(&parse(&format!("{} --output other", config.display()))).is_ok());
    }

    #[test]
    fn an_output_that_cannot_be_written_is_told_before_anything_is_measured() {
        let text =
            run(&parse("0.5b --device cuda:999 --output /nowhere/tuning.json")).unwrap_err().to_string();
        assert!(text.contains("/nowhere/tuning.json cannot be written"), "{text}");
    }
}
