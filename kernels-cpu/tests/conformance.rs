//! The suite of `quire_kernels` on every instruction set of this machine, as it is and as an asynchronous device.

use quire_kernels::{Kernels, conformance, testing};
use quire_kernels_cpu::{CpuConfig, Isa, kernels};

fn on_every_isa(threads: usize, check: impl Fn(Kernels)) {
    for isa in Isa::available() {
        println!("{isa}, {threads} threads");
        check(kernels(CpuConfig { threads: Some(threads), isa: Some(isa) }).unwrap());
    }
}

#[test]
fn every_instruction_set_passes_with_one_thread() {
    on_every_isa(1, |kernels| conformance::run(&kernels).assert_ok());
}

#[test]
fn every_instruction_set_passes_with_three_threads() {
    on_every_isa(3, |kernels| conformance::run(&kernels).assert_ok());
}

#[test]
fn every_instruction_set_passes_as_an_asynchronous_device() {
    on_every_isa(2, |kernels| conformance::run(&testing::deferred(&kernels)).assert_ok());
}
