//! Rows whose choice hangs on their last token: words of several tokens that must not be completed.

use quire_engine::{RequestOutput, SamplingParams};

use crate::rig::{Rig, RigSpec, byte_tokens};

fn without(words: &[&str], max_tokens: u64) -> SamplingParams {
    let bad_words = words.iter().map(|word| (*word).to_owned()).collect();
    SamplingParams { bad_words, ..SamplingParams::greedy(max_tokens) }
}

fn text(output: &RequestOutput) -> &str {
    &output.outputs[0].text
}

/// Where a token is forbidden, the scripted device gives the next one that is not.
fn both_loops(num_blocks: usize, script: &'static str) -> [Rig; 2] {
    let spec = || RigSpec::with_pool(num_blocks, 4);
    [spec(), spec().plain()].map(|spec| spec.start_with_bytes(script))
}

#[test]
fn a_word_of_several_tokens_is_never_completed() {
    for rig in both_loops(64, "xABAB ABCA") {
        for (words, expected) in [
            (&["AB"][..], "xACAC ACCA"),
            (&["ABA"], "xABBB ABCA"),
            (&["BC", "xA"], "xBBAB ABDA"),
            (&["AB", "AC"], "xADAD ADCA"),
            (&["zz"], "xABAB ABCA"),
        ] {
            assert_eq!(text(&rig.generate(without(words, 10))), expected, "without {words:?}");
        }
        rig.check_alive();
        rig.check_idle();
    }
}

/// What was generated before a preemption counts when the sequence has come back; neighbours that are not gated run
/// ahead as ever.
#[test]
fn gated_rows_are_the_same_beside_others_and_after_preemptions() {
    let script = "ABABABABABABABABABABABAB";
    for rig in both_loops(16, script) {
        let rows: Vec<_> = (0..6)
            .map(|i| (vec![50 + i; 5], if i % 2 == 0 { without(&["AB"], 24) } else { without(&[], 24) }))
            .collect();
        let outputs = rig.llm.generate_with(rows).unwrap();
        for (i, output) in outputs.iter().enumerate() {
            let expected = if i % 2 == 0 { script.replace('B', "C") } else { script.to_owned() };
            assert_eq!(text(output), expected);
            assert_eq!(output.outputs[0].token_ids, byte_tokens(expected));
        }
        assert!(outputs.iter().any(|output| output.metrics.num_preemptions > 0), "the pool is too large");
        rig.check_alive();
    }
}

#[test]
fn a_failed_step_with_gated_rows_leaves_no_wait_behind() {
    for rig in both_loops(64, "ABABABAB") {
        rig.control.fail_step(2);
        let error = rig.llm.generate(["x"], &without(&["AB"], 8)).unwrap_err();
        assert!(format!("{error:?}").contains("Executor"), "{error:?}");
        assert_eq!(text(&rig.generate(without(&["AB"], 8))), "ACACACAC");
        rig.check_alive();
    }
}
