//! How long a policy lets one request wait while others come that it may like better.

use std::time::Duration;

use quire_kvcache::KvCacheConfig;

use crate::config::SchedulerConfig;
use crate::ids::{SeqId, TenantId};
use crate::policies::Fcfs;
use crate::policy::SchedulerPolicy;
use crate::sequence::{NewSequence, SeqStatus};
use crate::testing::simulation::{Simulation, SimulationConfig};

/// One request, and others that never cease to come: whatever a policy prefers, one of the loads has it in the others.
#[derive(Clone, Copy, Debug)]
struct Load {
    one: Kind,
    others: Kind,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    num_tokens: u32,
    priority: i32,
    tenant: u64,
}

const fn kind(num_tokens: u32, priority: i32, tenant: u64) -> Kind {
    Kind { num_tokens, priority, tenant }
}

const LOADS: [Load; 4] = [
    Load { one: kind(100, 2, 0), others: kind(6, -2, 1) },
    Load { one: kind(6, 2, 0), others: kind(100, -2, 0) },
    Load { one: kind(100, -2, 0), others: kind(6, 2, 0) },
    Load { one: kind(6, -2, 1), others: kind(100, 2, 0) },
];

/// Steps in which the time passes by which a policy lets others overtake.
const AGEING_STEPS: u32 = 300;
/// Of what first come, first served takes, for queues that are served in turn.
const FACTOR: u64 = 4;
/// For what a policy does at its leisure.
const SLACK_STEPS: u64 = 400;
/// Others that wait at every time.
const NUM_WAITING: usize = 4;

/// Runs a policy through loads that never end, as long as it may take until the one request starts.
///
/// # Panics
/// If it does not start in time, unless the policy says that it lets requests starve.
pub(super) fn check_overtaking(make: &dyn Fn() -> Box<dyn SchedulerPolicy>) {
    let Some(ageing) = make().max_overtaking() else { return };
    let step_time = (ageing / AGEING_STEPS).max(Duration::from_millis(1));
    for load in LOADS {
        let usual = start(Box::new(Fcfs), load, step_time, 10_000);
        let usual = usual.expect("first come, first served");
        let bound = u64::from(AGEING_STEPS) + FACTOR * usual + SLACK_STEPS;
        assert!(
            start(make(), load, step_time, bound).is_some(),
            "{}: a request is overtaken by others for {bound} steps of {step_time:?}, with fcfs it starts in step {usual}, \
             and max_overtaking is {ageing:?} (a policy that means it says None there): {load:?}",
            make().name()
        );
    }
}

/// The step in which the one request starts.
fn start(policy: Box<dyn SchedulerPolicy>, load: Load, step_time: Duration, max_steps: u64) -> Option<u64> {
    let config = SimulationConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: 4,
            max_num_batched_tokens: 64,
            ..SchedulerConfig::new(200)
        },
        cache: KvCacheConfig::new(64, 4),
        max_open_steps: 2,
    };
    let mut bench = Simulation::new(config, policy);
    bench.set_step_time(step_time);
    let mut others = Vec::new();
    top_up(&mut bench, load.others, &mut others);
    bench.step();
    let one = add(&mut bench, load.one, u64::MAX);
    for step in 0..max_steps {
        top_up(&mut bench, load.others, &mut others);
        let plan = bench.step();
        if plan.is_some_and(|plan| plan.rows.iter().any(|row| row.seq == one)) {
            return Some(step);
        }
    }
    None
}

/// Others come until so many wait.
fn top_up(bench: &mut Simulation, kind: Kind, others: &mut Vec<SeqId>) {
    let is_waiting = |seq: &SeqId| {
        let seq = bench.scheduler().seq(*seq);
        seq.is_some_and(|seq| seq.status() == SeqStatus::Waiting)
    };
    others.retain(is_waiting);
    while others.len() < NUM_WAITING {
        let number = bench.num_operations();
        others.push(add(bench, kind, number));
    }
}

fn add(bench: &mut Simulation, kind: Kind, number: u64) -> SeqId {
    let Kind { num_tokens, priority, tenant } = kind;
    let mut new = NewSequence::new(Simulation::prompt(number, num_tokens), 5, bench.now());
    (new.priority, new.tenant) = (priority, TenantId(tenant));
    bench.add(new, number, false).expect("it fits")
}
