//! Beam search: against a plain one that computes every prefix anew, however the engine runs it.

use std::collections::BTreeSet;
use std::path::Path;

use quire_engine::{
    BeamSearchParams, CompletionOutput, EngineOptions, Error, ErrorKind, FinishReason, Llm,
    LogitsProcessorCall, MaxModelLen, PreemptionMode, Request, RequestEvent, RequestOutput, SamplingParams,
    StopReason, StructuredOutputs,
};
use quire_kernels::{Kernels, reference, testing};
use quire_models::testing::TinyModel;
use tempfile::TempDir;

use crate::model::{load, options, prompt};
use crate::rig::{Random, Rig, RigSpec, check_idle};

/// So many tokens end a text that some texts end.
fn is_end(token_id: u32) -> bool {
    token_id % 5 == 2
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let ends: BTreeSet<u32> = (0..288).filter(|id| is_end(*id)).collect();
    let generation = serde_json::json!({ "eos_token_id": ends });
    std::fs::write(folder.path().join("generation_config.json"), generation.to_string()).unwrap();
    folder
}

/// A text of the plain search.
#[derive(Clone, Debug)]
struct Text {
    ids: Vec<u32>,
    logprob: f64,
    ended: bool,
}

/// Thirty lines of beam search: each step computes the whole prefix of each beam, alone.
fn plain_search(lone: &Llm, prompt: &[u32], params: &BeamSearchParams) -> Vec<Text> {
    let width = params.beam_width as usize;
    let ask =
        SamplingParams { logprobs: Some(2 * width as i64), ignore_eos: true, ..SamplingParams::greedy(1) };
    let (mut live, mut found) = (vec![Text { ids: vec![], logprob: 0.0, ended: false }], Vec::new());
    for _ in 0..params.max_tokens {
        let mut next = Vec::new();
        for beam in live {
            let output = lone.generate([[prompt, &beam.ids].concat()], &ask).unwrap().remove(0);
            for candidate in &output.outputs[0].logprobs.as_ref().unwrap()[0].top {
                let ids = [&beam.ids[..], &[candidate.token_id]].concat();
                let ended = !params.ignore_eos && is_end(candidate.token_id);
                let text = Text { ids, logprob: beam.logprob + f64::from(candidate.logprob), ended };
                if ended { found.push(text) } else { next.push(text) }
            }
        }
        next.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        next.truncate(width);
        live = next;
    }
    found.extend(live);
    let score = |text: &Text| {
        let len = prompt.len() + text.ids.len() - usize::from(text.ended);
        text.logprob / (len as f64).powf(params.length_penalty)
    };
    found.sort_by(|a, b| score(b).total_cmp(&score(a)));
    found.truncate(width);
    found
}

#[track_caller]
fn assert_found(output: &RequestOutput, expected: &[Text], include_end: bool) {
    let outputs = &output.outputs;
    let ids = |output: &CompletionOutput| output.token_ids.clone();
    assert_eq!(
        outputs.iter().map(ids).collect::<Vec<_>>(),
        expected.iter().map(|t| t.ids.clone()).collect::<Vec<_>>()
    );
    for (output, text) in outputs.iter().zip(expected) {
        assert!((output.cumulative_logprob.unwrap() - text.logprob).abs() < 1e-9);
        let last = *text.ids.last().unwrap();
        let (reason, stopped) = match text.ended {
            // The tokenizer's own end is not told.
            true => (FinishReason::Stop, (last != 2).then_some(StopReason::Token(last))),
            false => (FinishReason::Length, None),
        };
        assert_eq!((output.finish_reason, &output.stop_reason), (reason, &stopped), "{text:?}");
        assert!(text.ended || include_end || !output.token_ids.is_empty());
    }
}

fn searches() -> Vec<BeamSearchParams> {
    let new = BeamSearchParams::new;
    vec![
        new(3, 5),
        new(1, 6),
        BeamSearchParams { length_penalty: 0.0, ..new(4, 8) },
        BeamSearchParams { ignore_eos: true, length_penalty: -1.5, ..new(5, 7) },
        BeamSearchParams { length_penalty: 3.0, include_stop_str_in_output: true, ..new(2, 9) },
    ]
}

fn lone(folder: &Path) -> Llm {
    load(options(folder).async_scheduling(false).enable_prefix_caching(false), reference::kernels())
}

struct Case {
    prompts: Vec<Vec<u32>>,
    params: BeamSearchParams,
    expected: Vec<Vec<Text>>,
}

fn cases(folder: &Path) -> Vec<Case> {
    let lone = lone(folder);
    let mut random = Random(23);
    let prompts: Vec<_> = [7, 8, 15, 30].map(|len| prompt(&mut random, len)).into();
    let case = |params: BeamSearchParams| {
        let expected = prompts.iter().map(|prompt| plain_search(&lone, prompt, &params)).collect();
        Case { prompts: prompts.clone(), params, expected }
    };
    searches().into_iter().map(case).collect()
}

#[track_caller]
fn check(llm: &Llm, case: &Case) {
    let outputs = llm.beam_search(case.prompts.clone(), &case.params).unwrap();
    for (output, expected) in outputs.iter().zip(&case.expected) {
        assert_found(output, expected, case.params.include_stop_str_in_output);
    }
    check_idle(llm);
}

#[test]
fn br_24_beams_are_those_of_a_plain_search_however_they_run() {
    let folder = folder();
    let cases = cases(folder.path());
    assert!(cases.iter().flat_map(|case| &case.expected).flatten().any(|text| text.ended), "some texts end");
    let (mut num_preemptions, mut num_swaps) = (0, 0);
    let small = |options: EngineOptions, num_blocks| {
        options.num_gpu_blocks_override(Some(num_blocks)).max_model_len(MaxModelLen::Tokens(48))
    };
    for overlapped in [false, true] {
        for prefix_caching in [false, true] {
            let options = || {
                let options = options(folder.path()).block_size(8).async_scheduling(overlapped);
                options.enable_prefix_caching(prefix_caching)
            };
            let ways: [(EngineOptions, Kernels); 5] = [
                (options(), reference::kernels()),
                (options().max_prefill_chunk(Some(7)), testing::deferred(&reference::kernels())),
                (small(options(), 12), reference::kernels()),
                (
                    small(options(), 14).swap_space(0.01).preemption_mode(PreemptionMode::Swap),
                    reference::kernels(),
                ),
                (options().max_num_seqs(2), reference::kernels()),
            ];
            for (i, (options, kernels)) in ways.into_iter().enumerate() {
                let llm = load(options, kernels);
                for case in &cases {
                    check(&llm, case);
                }
                let stats = llm.stats();
                assert_eq!(stats.num_finished.values().sum::<u64>(), stats.num_requests, "way {i}");
                num_preemptions += stats.num_preemptions;
                num_swaps += stats.num_swaps;
            }
        }
    }
    assert!(num_preemptions > num_swaps && num_swaps > 0, "{num_preemptions} preemptions, {num_swaps} swaps");
}

#[test]
fn scores_do_not_increase() {
    let folder = folder();
    let llm = lone(folder.path());
    let params = BeamSearchParams { length_penalty: 0.0, ..BeamSearchParams::new(5, 6) };
    let output = llm.beam_search([vec![9, 10, 11]], &params).unwrap().remove(0);
    let scores: Vec<_> = output.outputs.iter().map(|output| output.cumulative_logprob.unwrap()).collect();
    assert!(scores.len() == 5 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert_eq!(output.prompt_token_ids, [9, 10, 11]);
    assert!(output.metrics.ttft_ms.is_some() && output.metrics.tpot_ms.is_some());
}

#[test]
fn the_end_token_is_told_and_shown_where_asked_for() {
    let folder = folder();
    let llm = lone(folder.path());
    for include_stop_str_in_output in [false, true] {
        let params = BeamSearchParams {
            include_stop_str_in_output,
            length_penalty: -9.0,
            ..BeamSearchParams::new(8, 6)
        };
        for output in &llm.beam_search(["Hello"], &params).unwrap()[0].outputs {
            let num_shown = output.token_ids.len()
                - usize::from(output.finish_reason == FinishReason::Stop && !include_stop_str_in_output);
            let shown: Vec<u32> = output.token_ids[..num_shown].to_vec();
            let special = shown.iter().any(|id| *id < 3 || *id > 258);
            if !special {
                assert_eq!(output.text, llm.detokenize(&shown).unwrap());
            }
        }
    }
}

fn scripted(num_blocks: usize, num_swap_blocks: usize, overlapped: bool) -> Rig {
    let mut spec = RigSpec::with_pool(num_blocks, 4);
    spec.capacity.num_swap_blocks = num_swap_blocks;
    let mut options = spec.options.clone().async_scheduling(overlapped);
    if num_swap_blocks > 0 {
        options = options.swap_space(1.0).preemption_mode(PreemptionMode::Swap);
    }
    RigSpec { options, ..spec }.start(|prompt, position| 20 + (prompt[0] + position as u32) % 250)
}

/// The device checks every block that a beam reads or writes.
#[test]
fn br_23_beams_never_write_what_another_one_reads() {
    let (mut num_preemptions, mut num_swaps) = (0, 0);
    for overlapped in [false, true] {
        for (num_blocks, num_swap_blocks) in [(128, 0), (20, 0), (20, 40)] {
            let rig = scripted(num_blocks, num_swap_blocks, overlapped);
            let request = |i: u32| {
                let prompt = vec![30 + i; 3 + 5 * i as usize];
                Request::beam_search(prompt, BeamSearchParams::new(1 + i % 4, 2 + 3 * u64::from(i)))
            };
            let outputs = rig.llm.generate_each((0..7).map(request).collect());
            for (i, output) in outputs.into_iter().enumerate() {
                let output = output.unwrap();
                assert_eq!(output.outputs.len(), 1 + i % 4);
                assert!(output.outputs.iter().all(|output| output.token_ids.len() == 2 + 3 * i));
            }
            rig.check_idle();
            rig.check_alive();
            num_preemptions += rig.llm.stats().num_preemptions;
            num_swaps += rig.llm.stats().num_swaps;
        }
    }
    assert!(num_preemptions > num_swaps && num_swaps > 0, "{num_preemptions} preemptions, {num_swaps} swaps");
}

/// All beams in one batch, and no prompt twice.
#[test]
fn br_24_a_search_takes_one_step_a_token() {
    for overlapped in [false, true] {
        let rig = scripted(128, 0, overlapped);
        let output = rig.llm.beam_search([vec![9; 30]], &BeamSearchParams::new(4, 5)).unwrap().remove(0);
        assert_eq!(output.outputs.len(), 4);
        let batches = rig.control.batches();
        let sizes: Vec<_> =
            batches.iter().filter(|batch| !batch.rows.is_empty()).map(|batch| batch.num_tokens()).collect();
        assert_eq!(sizes, [30, 4, 4, 4, 4]);
        let copies: Vec<_> = batches.iter().map(|batch| batch.block_copies.len()).collect();
        assert!(copies.iter().sum::<usize>() > 0, "{copies:?}");
    }
}

#[test]
fn f_rig_a_dropped_search_leaves_nothing_at_any_point() {
    for num_steps in 0..8 {
        for overlapped in [false, true] {
            let rig = scripted(24, 8, overlapped);
            rig.control.set_delay(std::time::Duration::from_micros(300));
            let searches: Vec<_> = (0..3)
                .map(|i| {
                    rig.llm
                        .stream(Request::beam_search(vec![40 + i; 9], BeamSearchParams::new(4, 30)))
                        .unwrap()
                })
                .collect();
            let mut other = rig.llm.stream(Request::new(vec![70; 5], SamplingParams::greedy(12))).unwrap();
            while rig.llm.stats().num_steps < num_steps {
                std::thread::yield_now();
            }
            drop(searches);
            let last = std::iter::from_fn(|| other.blocking_next()).last();
            let Some(RequestEvent::Finished(output)) = last else { panic!("{last:?}") };
            assert_eq!(output.outputs[0].token_ids.len(), 12);
            rig.check_idle();
            rig.check_alive();
            assert_eq!(rig.llm.stats().num_free_swap_blocks, 8);
        }
    }
}

#[test]
fn a_failed_step_fails_the_search_and_no_other_request_later() {
    for overlapped in [false, true] {
        let rig = scripted(64, 0, overlapped);
        rig.control.fail_step(4);
        let error = rig.llm.beam_search([vec![9; 9]], &BeamSearchParams::new(3, 12)).unwrap_err();
        let Error::InList { source, .. } = error else { panic!("{error}") };
        assert!(matches!(*source, Error::Executor(_)), "{source}");
        rig.check_idle();
        rig.check_alive();
        assert_eq!(
            rig.llm.beam_search([vec![9; 9]], &BeamSearchParams::new(3, 4)).unwrap()[0].outputs.len(),
            3
        );
    }
}

#[test]
fn a_search_that_cannot_be_is_refused_before_anything_runs() {
    let rig = scripted(64, 0, true);
    let refused = |params| {
        let error = rig.llm.beam_search([vec![9; 9]], &params).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadRequest);
        error.field().unwrap_or_default().to_owned()
    };
    assert_eq!(refused(BeamSearchParams::new(0, 4)), "beam_width");
    assert_eq!(refused(BeamSearchParams::new(11, 4)), "beam_width");
    assert_eq!(refused(BeamSearchParams::new(2, 0)), "max_tokens");
    assert_eq!(rig.llm.stats().num_requests, 0);
}

/// The edge of the pool, and of the model's context.
#[test]
fn a_search_with_a_form_or_a_logits_processor_is_refused() {
    let rig = scripted(64, 0, true);
    let form = StructuredOutputs { regex: Some("a+".to_owned()), ..StructuredOutputs::default() };
    let processor = LogitsProcessorCall::new("any", ());
    let beside = [
        (
            "structured_outputs",
            SamplingParams { structured_outputs: Some(form), ..SamplingParams::default() },
        ),
        (
            "logits_processors",
            SamplingParams { logits_processors: vec![processor], ..SamplingParams::default() },
        ),
    ];
    for (field, params) in beside {
        let request = Request { params, ..Request::beam_search(vec![9], BeamSearchParams::new(2, 3)) };
        let error = rig.llm.stream(request).unwrap_err();
        assert!(matches!(&error, Error::Param(refused) if refused.field() == field), "{error:?}");
        assert!(
            error.to_string().ends_with("is not built yet: expected none beside a beam search"),
            "{error}"
        );
    }
    rig.check_alive();
}

#[test]
fn a_search_ends_as_length_where_there_is_no_room() {
    let rig = scripted(8, 0, true);
    let output = rig.llm.beam_search([vec![9; 20]], &BeamSearchParams::new(2, 1000)).unwrap().remove(0);
    for output in &output.outputs {
        assert_eq!(output.finish_reason, FinishReason::Length);
        assert!((8..=12).contains(&output.token_ids.len()), "{}", output.token_ids.len());
    }
    rig.check_idle();
    rig.check_alive();
}
