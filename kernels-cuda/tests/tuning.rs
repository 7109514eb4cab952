//! Tuned algorithms of cuBLASLt, on a GPU.
#![cfg(feature = "cuda")]

mod gpu;

use quire_kernels::conformance::{self, Report, RowIndependence};
use quire_kernels::{DType, HostWeight, Kernels};
use quire_kernels_cuda::{CudaConfig, KernelTuning, ProductShape, TuneOptions, kernels, tune, tuned_kernels};

const PLAIN: CudaConfig = CudaConfig { ordinal: 0, activation_dtype: DType::BF16, deterministic: false };

/// Products of a small model, and of the suite.
fn products() -> Vec<ProductShape> {
    let product = |rows, columns, num_tokens, out_dtype, has_bias| ProductShape {
        rows,
        columns,
        num_tokens,
        dtype: DType::BF16,
        out_dtype,
        has_bias,
    };
    let sizes = [(1152, 896), (896, 896), (9728, 896), (896, 4864)];
    let mut products: Vec<_> = sizes
        .into_iter()
        .flat_map(|(rows, columns)| [64, 256].map(|n| product(rows, columns, n, DType::BF16, rows == 1152)))
        .collect();
    products.push(product(151_936, 896, 64, DType::F32, false));
    products
}

/// A tuning, where there is a GPU.
fn tuned() -> Option<KernelTuning> {
    gpu::open(|| {
        tune(PLAIN, &products(), TuneOptions { max_candidates: 8, num_rounds: 3 }, &mut |product, tuned| {
            let ProductShape { rows, columns, num_tokens, .. } = product;
            match tuned {
                Some(t) => println!(
                    "{rows}x{columns} of {num_tokens}: {} to {} us, {}",
                    t.before_us, t.after_us, t.algorithm
                ),
                None => println!("{rows}x{columns} of {num_tokens}: the first answer is the best"),
            }
        })
    })
}

/// The same with something else in its file.
fn changed(tuning: &KernelTuning, change: impl Fn(&mut serde_json::Value)) -> KernelTuning {
    let mut value = serde_json::to_value(tuning).expect("a tuning is JSON");
    change(&mut value);
    KernelTuning::parse(&value.to_string()).expect("a tuning")
}

fn linear_conforms(kernels: &Kernels) {
    let mut report = Report::new(RowIndependence::WithinTolerance);
    conformance::linear(kernels, &mut report);
    report.assert_ok();
}

#[test]
fn a_tuning_is_used_where_it_was_made_and_changes_the_fingerprint() {
    let Some(tuning) = tuned() else { return };
    let fingerprint = |kernels: &Kernels| kernels.dispatch().fingerprint();
    let plain = fingerprint(&kernels(PLAIN).unwrap());
    assert_eq!(plain, fingerprint(&kernels(PLAIN).unwrap()), "the choices are the same in each process");
    let with_it = tuned_kernels(PLAIN, &tuning).unwrap();
    assert_ne!(plain, fingerprint(&with_it));
    linear_conforms(&with_it);
    let of_another = changed(&tuning, |value| value["cublaslt"] = 1.into());
    assert_eq!(plain, fingerprint(&tuned_kernels(PLAIN, &of_another).unwrap()));
}

#[test]
fn a_tuning_is_not_used_where_results_may_not_depend_on_the_library() {
    let Some(tuning) = tuned() else { return };
    let config = CudaConfig { deterministic: true, ..PLAIN };
    let (plain, with_it) = (kernels(config).unwrap(), tuned_kernels(config, &tuning).unwrap());
    assert_eq!(plain.dispatch(), with_it.dispatch());
    let mut report = Report::new(RowIndependence::Bitwise);
    conformance::linear(&with_it, &mut report);
    report.assert_ok();
}

/// The library is asked whether it takes an algorithm before it is used.
#[test]
fn an_algorithm_that_the_library_does_not_take_is_replaced() {
    let Some(tuning) = tuned() else { return };
    let broken = changed(&tuning, |value| {
        for product in value["products"].as_array_mut().expect("a list") {
            product["algo"] = "0".repeat(128).into();
        }
    });
    let with_it = tuned_kernels(PLAIN, &broken).unwrap();
    for product in broken.products.iter().map(|tuned| tuned.product).filter(|p| p.num_tokens > 64) {
        let weight = vec![0u8; 2 * product.rows * product.columns];
        let (dtype, rows, columns) = (DType::BF16, product.rows, product.columns);
        let weight = HostWeight { name: "w", dtype, rows, columns, data: &weight, scales: None, bias: None };
        let layer = with_it.linear().pack(&[weight]).unwrap();
        let dims = [product.num_tokens, columns];
        let x = with_it.upload(DType::BF16, &dims, &vec![0u16; dims[0] * dims[1]]).unwrap();
        let out = with_it.upload(DType::BF16, &[dims[0], rows], &vec![1u16; dims[0] * rows]).unwrap();
        let mut ctx = with_it.step_ctx(64 << 20).unwrap();
        ctx.step(|ctx| {
            let x = with_it.linear().activation(ctx, &x)?;
            layer.forward(ctx, &x, &out)
        })
        .unwrap();
        assert!(ctx.read(&out).unwrap().wait_as::<u16>().unwrap().iter().all(|&bits| bits == 0));
    }
    linear_conforms(&with_it);
}
