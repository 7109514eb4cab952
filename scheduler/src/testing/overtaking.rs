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
    tenants: Tenants,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    num_tokens: u32,
    num_output_tokens: u32,
    priority: i32,
}

/// On whose behalf they come.
#[derive(Clone, Copy, Debug)]
enum Tenants {
    /// All on behalf of one.
    One,
    /// The one on behalf of the tenant of the first number, the others of the second.
    Two(u64, u64),
    /// Each of the others on behalf of a tenant that was never seen, while that of the one was served before.
    New,
}

const fn kind(num_tokens: u32, num_output_tokens: u32, priority: i32) -> Kind {
    Kind { num_tokens, num_output_tokens, priority }
}

/// What differs between the one and the others, in both directions.
const LOADS: [Load; 10] = [
    Load { one: kind(100, 5, 2), others: kind(6, 5, -2), tenants: Tenants::Two(0, 1) },
    Load { one: kind(6, 5, -1), others: kind(100, 5, 2), tenants: Tenants::Two(1, 0) },
    Load { one: kind(6, 5, 2), others: kind(100, 5, -2), tenants: Tenants::One },
    Load { one: kind(100, 5, -2), others: kind(6, 5, 2), tenants: Tenants::One },
    Load { one: kind(600, 5, 0), others: kind(6, 5, 0), tenants: Tenants::One },
    Load { one: kind(6, 5, 1000), others: kind(6, 5, -1000), tenants: Tenants::One },
    Load { one: kind(6, 5, -1000), others: kind(6, 5, 1000), tenants: Tenants::One },
    Load { one: kind(6, 100, 0), others: kind(6, 2, 0), tenants: Tenants::One },
    Load { one: kind(6, 2, 0), others: kind(6, 100, 0), tenants: Tenants::One },
    Load { one: kind(20, 20, 0), others: kind(20, 20, 0), tenants: Tenants::New },
];

/// Steps in which the time passes by which a policy lets others overtake.
const AGEING_STEPS: u32 = 300;
/// Of what first come, first served takes, for queues that are served in turn.
const FACTOR: u64 = 4;
/// For what a policy does at its leisure.
const SLACK_STEPS: u64 = 400;
/// Others that wait at every time.
const NUM_WAITING: usize = 4;
/// Who waits longer than this has no bound that anybody would see the end of.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Runs a policy through loads that never end, as long as it may take until the one request starts.
///
/// # Panics
/// If it does not start in time, unless the policy says that it lets requests starve.
pub(super) fn check_overtaking(make: &dyn Fn() -> Box<dyn SchedulerPolicy>) {
    let Some(ageing) = make().max_overtaking() else { return };
    assert!(
        ageing <= LONGEST,
        "{}: max_overtaking is {ageing:?}, which is no bound (a policy that means it says None there)",
        make().name()
    );
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
            ..SchedulerConfig::new(1000)
        },
        cache: KvCacheConfig::new(64, 16),
        max_open_steps: 2,
    };
    let mut bench = Simulation::new(config, policy);
    bench.set_step_time(step_time);
    let own = load.tenants.of_one();
    if matches!(load.tenants, Tenants::New) {
        add(&mut bench, kind(20, 100, 0), own, u64::MAX - 1);
        while bench.ended().is_empty() {
            bench.step();
        }
    }
    let mut others = Vec::new();
    top_up(&mut bench, load, &mut others);
    bench.step();
    let one = add(&mut bench, load.one, own, u64::MAX);
    for step in 0..max_steps {
        top_up(&mut bench, load, &mut others);
        let plan = bench.step();
        if plan.is_some_and(|plan| plan.rows.iter().any(|row| row.seq == one)) {
            return Some(step);
        }
    }
    None
}

/// Others come until so many wait.
fn top_up(bench: &mut Simulation, load: Load, others: &mut Vec<SeqId>) {
    let is_waiting = |seq: &SeqId| {
        let seq = bench.scheduler().seq(*seq);
        seq.is_some_and(|seq| seq.status() == SeqStatus::Waiting)
    };
    others.retain(is_waiting);
    while others.len() < NUM_WAITING {
        let number = bench.num_operations();
        others.push(add(bench, load.others, load.tenants.of_another(number), number));
    }
}

fn add(bench: &mut Simulation, kind: Kind, tenant: u64, number: u64) -> SeqId {
    let Kind { num_tokens, num_output_tokens, priority } = kind;
    let prompt = Simulation::prompt(number, num_tokens);
    let mut new = NewSequence::new(prompt, num_output_tokens, bench.now());
    (new.priority, new.tenant) = (priority, TenantId(tenant));
    bench.add(new, number, false).expect("it fits")
}

impl Tenants {
    fn of_one(self) -> u64 {
        match self {
            Self::Two(one, _) => one,
            Self::One | Self::New => 0,
        }
    }

    /// `number` has no other.
    fn of_another(self, number: u64) -> u64 {
        match self {
            Self::One => 0,
            Self::Two(_, others) => others,
            Self::New => 1 + number,
        }
    }
}
