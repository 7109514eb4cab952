//! `GET /metrics`: the names that dashboards of vLLM know, and Quire's own.
//!
//! Every scrape shows one moment of the engine, so that these hold: requests taken in = running + waiting + swapped + all
//! that ended; values of the time to the first token = requests with a first token; free + live + cached blocks = all.

mod exposition;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use quire_engine::{EngineStats, FinishReason};

use self::exposition::Exposition;
use super::service::Service;

/// No bound of a histogram of seconds is left out.
const ALL: f64 = f64::INFINITY;

pub(crate) async fn metrics(State(service): State<Arc<Service>>) -> impl IntoResponse {
    let stats = service.engine.stats();
    let name = service.settings.served_names.first().map(String::as_str).unwrap_or_default();
    let prefixes = if service.settings.has_vllm_metrics { vec!["vllm:", "quire:"] } else { vec!["quire:"] };
    let mut text = Exposition::new(prefixes, name);
    queues(&mut text, &stats);
    cache(&mut text, &service, &stats);
    tokens(&mut text, &stats);
    let max_tokens = service.engine.model().max_model_len as f64;
    times(&mut text, &stats);
    let help = "From the commit of a step to its tokens in the socket, for what is streamed.";
    text.histogram("token_write_seconds", help, &service.write_times.histogram(), ALL);
    sizes(&mut text, &stats, max_tokens);
    responses(&mut text, &service);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.into_text())
}

fn queues(text: &mut Exposition, stats: &EngineStats) {
    let num_waiting = stats.num_waiting.saturating_sub(stats.num_swapped);
    text.gauge("num_requests_running", "Requests that run.", stats.num_running as f64);
    text.gauge("num_requests_waiting", "Requests that wait, those on the host left out.", num_waiting as f64);
    text.gauge("num_requests_swapped", "Requests whose blocks are on the host.", stats.num_swapped as f64);
    let reasons: Vec<_> =
        stats.waiting_by_reason.iter().map(|(reason, num)| (*reason, *num as f64)).collect();
    let help = "Requests that wait or are swapped, by what they wait for.";
    text.labelled("num_requests_waiting_by_reason", "gauge", help, "reason", &reasons);
    text.counter("requests_total", "Requests that were taken in.", stats.num_requests);
    let finished = |reason: FinishReason| stats.num_finished.get(&reason).copied().unwrap_or(0) as f64;
    let ended = FinishReason::ALL.map(|reason| (reason.name(), finished(reason)));
    text.labelled(
        "request_success_total",
        "counter",
        "Requests that ended, by reason.",
        "finished_reason",
        &ended,
    );
    text.counter("num_preemptions_total", "Times that a sequence gave way.", stats.num_preemptions);
    text.counter("num_swaps_total", "Those of them that moved its blocks to the host.", stats.num_swaps);
}

/// Those that were refused are here alone: the engine has not taken them in.
fn responses(text: &mut Exposition, service: &Service) {
    let counts = service.responses.all();
    let counts: Vec<_> = counts.iter().map(|(status, num)| (status.as_str(), *num as f64)).collect();
    text.labelled("http_responses_total", "counter", "Answers, by their status.", "status", &counts);
}

fn cache(text: &mut Exposition, service: &Service, stats: &EngineStats) {
    let usage = stats.kv_cache_usage();
    text.gauge("kv_cache_usage_perc", "Share of the KV blocks that sequences hold, from 0 to 1.", usage);
    text.gauge("gpu_cache_usage_perc", "The older name of kv_cache_usage_perc.", usage);
    let num_swapped = stats.num_swap_blocks - stats.num_free_swap_blocks;
    let host_usage = num_swapped as f64 / stats.num_swap_blocks.max(1) as f64;
    text.gauge("cpu_cache_usage_perc", "Share of the swap space that is used, from 0 to 1.", host_usage);
    let blocks = [
        ("free", stats.num_free_blocks),
        ("live", stats.num_live_blocks),
        ("cached", stats.num_cached_blocks),
    ];
    let blocks = blocks.map(|(state, num)| (state, num as f64));
    text.labelled("kv_blocks", "gauge", "Blocks of the KV cache, by state.", "state", &blocks);
    let (queries, hits) = (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens);
    text.counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache.", queries);
    text.counter("prefix_cache_hits_total", "Tokens found there.", hits);
    let block_size = service.engine.config().map_or(1, |config| config.block_size) as u64;
    text.counter(
        "gpu_prefix_cache_queries_total",
        "The same in blocks, as older dashboards count.",
        queries / block_size,
    );
    text.counter("gpu_prefix_cache_hits_total", "The same in blocks.", hits / block_size);
    let rate = if queries == 0 { -1.0 } else { hits as f64 / queries as f64 };
    text.gauge(
        "gpu_prefix_cache_hit_rate",
        "Share of looked-up tokens that were found; -1 before the first.",
        rate,
    );
    text.gauge("cpu_prefix_cache_hit_rate", "There is no prefix cache on the host: always -1.", -1.0);
    if let Some(config) = service.engine.config() {
        let facts = [
            ("block_size", config.block_size.to_string()),
            (
                "cache_dtype",
                config
                    .lines()
                    .iter()
                    .find(|(name, ..)| *name == "kv_cache_dtype")
                    .map(|(_, value, _)| value.clone())
                    .unwrap_or_default(),
            ),
            ("enable_prefix_caching", config.enable_prefix_caching.to_string()),
            ("gpu_memory_utilization", config.gpu_memory_utilization.to_string()),
            ("num_gpu_blocks", stats.num_blocks().to_string()),
            ("num_cpu_blocks", stats.num_swap_blocks.to_string()),
            ("swap_space", config.swap_space.to_string()),
        ];
        text.info("cache_config_info", "The KV cache's configuration.", &facts);
    }
}

fn tokens(text: &mut Exposition, stats: &EngineStats) {
    let (prompt, generated) = (stats.num_prompt_tokens, stats.num_generation_tokens);
    text.counter("prompt_tokens_total", "Prompt tokens of requests with a first token.", prompt);
    text.counter("generation_tokens_total", "Tokens generated.", generated);
    text.counter("tokens_total", "Both.", prompt + generated);
    text.counter("steps_total", "Steps.", stats.num_steps);
    text.counter("first_tokens_total", "Requests with a first token.", stats.num_first_tokens);
    text.counter(
        "device_time_us_total",
        "Microseconds that the device worked on steps.",
        stats.device_time_us,
    );
    text.counter("device_idle_us_total", "Microseconds that it waited for the host.", stats.device_idle_us);
}

fn times(text: &mut Exposition, stats: &EngineStats) {
    let all = &stats.distributions;
    text.histogram("time_to_first_token_seconds", "From arrival to the first token.", &all.ttft_s, ALL);
    text.histogram(
        "time_per_output_token_seconds",
        "Between two tokens of a sequence.",
        &all.inter_token_s,
        ALL,
    );
    text.histogram(
        "inter_token_latency_seconds",
        "Between two tokens of a sequence.",
        &all.inter_token_s,
        ALL,
    );
    text.histogram(
        "request_time_per_output_token_seconds",
        "The mean of it over a request.",
        &all.tpot_s,
        ALL,
    );
    text.histogram("e2e_request_latency_seconds", "From arrival to the end.", &all.e2e_s, ALL);
    text.histogram("request_queue_time_seconds", "From arrival to the first step.", &all.queue_s, ALL);
    text.histogram(
        "time_in_queue_requests",
        "The older name of request_queue_time_seconds.",
        &all.queue_s,
        ALL,
    );
    text.histogram(
        "request_inference_time_seconds",
        "From the first step to the end.",
        &all.inference_s,
        ALL,
    );
    text.histogram(
        "request_prefill_time_seconds",
        "From the first step to the first token.",
        &all.prefill_s,
        ALL,
    );
    text.histogram("request_decode_time_seconds", "From the first token to the end.", &all.decode_s, ALL);
    text.histogram("step_seconds", "Time that the device worked on a step.", &all.step_s, ALL);
}

fn sizes(text: &mut Exposition, stats: &EngineStats, max_tokens: f64) {
    let all = &stats.distributions;
    text.histogram("iteration_tokens_total", "Tokens that a step computed.", &all.step_tokens, ALL);
    text.histogram("request_prompt_tokens", "Tokens of prompts.", &all.prompt_tokens, max_tokens);
    text.histogram(
        "request_generation_tokens",
        "Tokens generated for a request.",
        &all.generation_tokens,
        max_tokens,
    );
    let help = "Tokens generated for a request, over all its outputs.";
    text.histogram("request_max_num_generation_tokens", help, &all.generation_tokens, max_tokens);
    text.histogram("request_params_max_tokens", "max_tokens of requests.", &all.max_tokens, max_tokens);
    text.histogram("request_params_n", "n of requests.", &all.n, ALL);
}
