//! `quire serve` as a process.

mod clients;
mod known_failures;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod program;
mod server;

use program::run;
use server::Server;

#[test]
fn a_server_answers_and_ends_in_order() {
    let server = Server::start(&["--api-key", "secret"]);
    assert!(server.send("GET /health", "").starts_with("HTTP/1.1 200"));
    let refused = server.send("POST /v1/completions", r#"{"prompt": "a"}"#);
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let answer = server.send(
        "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\nX-Rest:",
        r#"{"prompt": "a", "max_tokens": 3}"#,
    );
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":"), "{answer}");
    server.signal("TERM");
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("shutting down") && !log.contains("panicked"), "{log}");
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_the_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    run(&["serve", "/nonexistent", "--port", &port], "").refused(&["cannot listen on 127.0.0.1:", "in use"]);
    run(&["serve", "/nonexistent", "--port", "0", "--api-key-file", "/nonexistent/keys"], "")
        .refused(&["/nonexistent/keys"]);
    run(&["serve", "/nonexistent", "--port", "70000"], "").refused(&["--port"]);
}

#[test]
fn a_model_may_have_several_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.yaml");
    std::fs::write(&file, "served-model-name: [x, y]\n").expect("written");
    let config = file.display().to_string();
    for (flags, names) in [
        (&["--served-model-name", "a", "b", "--port", "0"][..], &["a", "b"][..]),
        (&["--served-model-name", "a", "--served-model-name", "b"], &["a", "b"]),
        (&["--config", &config], &["x", "y"]),
        (&["--config", &config, "--served-model-name", "c"], &["c"]),
    ] {
        let server = Server::start(flags);
        let models = server.ask("GET /v1/models", "")["data"].clone();
        let told: Vec<_> = models.as_array().expect("a list").iter().map(|model| &model["id"]).collect();
        assert_eq!(told, names, "{flags:?}");
        for name in names {
            let body = format!(r#"{{"prompt": "a", "max_tokens": 1, "model": "{name}"}}"#);
            assert_eq!(server.ask("POST /v1/completions", &body)["model"], *name);
        }
        server.end_well();
    }
}

#[test]
fn sampling_defaults_may_be_given_at_start() {
    let server =
        Server::start(&["--override-generation-config", r#"{"temperature": 0.25, "max_new_tokens": 3}"#]);
    let document = server.ask("GET /openapi.json", "").to_string();
    assert!(document.contains(r#""default":0.25"#), "{document}");
    let answer = server.ask("POST /v1/completions", r#"{"prompt": "a", "ignore_eos": true}"#);
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    server.end_well();
    let tiny = program::Tiny::new();
    for (wrong, said) in
        [(r#"{"temperature": 7}"#, "temperature is 7"), (r#"{"temp": 1}"#, "max_new_tokens"), ("x", "JSON")]
    {
        run(&["serve", &tiny.path(), "--port", "0", "--override-generation-config", wrong], "")
            .refused(&["override_generation_config", said]);
    }
}

#[test]
fn what_is_no_key_does_not_open_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "# nobody yet\n\n").expect("written");
    let keys = file.display().to_string();
    run(&["serve", "/nonexistent", "--port", "0", "--api-key-file", &keys], "")
        .refused(&["keys: there is no key in it"]);
    run(&["serve", "/nonexistent", "--port", "0", "--api-key", ""], "").refused(&["--api-key"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_is_told_to_end_while_it_loads_ends_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("keys");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("a pipe");
    assert!(made.success());
    // Nobody writes into the pipe: it waits there for ever.
    let words = ["serve", "/nonexistent", "--port", "0", "--api-key-file", pipe.to_str().expect("UTF-8")];
    let mut child = program::command(&words).spawn().expect("the program was built for this test");
    let status = format!("/proc/{}/status", child.id());
    let hears_signals = || {
        let text = std::fs::read_to_string(&status).expect("it runs");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux says so");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & 1 << 14 != 0
    };
    while !hears_signals() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let killed = std::process::Command::new("kill").arg(child.id().to_string()).status().expect("a signal");
    assert!(killed.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn flags_may_come_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.yaml");
    std::fs::write(&file, "host: 127.0.0.1\nmax-queued-requests: 7\nport: 1\n").expect("written");
    let server = Server::start(&["--config", &file.display().to_string(), "--port", "0"]);
    let effective = server.send("GET /v1/effective", "");
    assert!(
        effective.contains(r#""max_num_waiting":{"source":"flag","value":"7"}"#)
            || effective.contains(r#""max_num_waiting":{"value":"7","source":"flag"}"#),
        "{effective}"
    );
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
    std::fs::write(&file, "prot: 1").expect("written");
    run(&["serve", "--config", &file.display().to_string()], "")
        .refused(&["serve.yaml", "did you mean port?"]);
    std::fs::write(&file, "max-model-len: x\n").expect("written");
    run(&["serve", "--config", &file.display().to_string(), "--max-model-len", "64"], "").refused(&[
        "serve.yaml",
        "max_model_len",
        "x",
    ]);
    run(&["serve", "--enable-lora"], "").refused(&["--enable-lora is not built"]);
    let traces = run(&["serve", "--port", "0", "--otlp-traces-endpoint", "grpc://localhost:4317"], "");
    if cfg!(feature = "otlp") {
        traces.refused(&["expected http://HOST:PORT/v1/traces"]);
    } else {
        traces.refused(&["build with --features otlp"]);
    }
    run(&["serve", "--ssl-certfile", "/nonexistent"], "").refused(&["--ssl-keyfile"]);
    run(&["serve", "--port", "0", "--ssl-certfile", "/nonexistent", "--ssl-keyfile", "/nonexistent"], "")
        .refused(&["/nonexistent: "]);
}

#[test]
fn flags_may_be_spelt_as_in_vllm() {
    let flags =
        ["--max_model_len", "64", "-tp", "1", "-O3", "--max-body-bytes", "1KiB", "--api_key", "secret"];
    let server = Server::start(&[&flags[..], &["--disable-fastapi-docs"]].concat());
    let ask =
        |path: &str| server.send(&format!("GET {path} HTTP/1.1\r\nAuthorization: Bearer secret\r\nX:"), "");
    let effective = ask("/v1/effective");
    assert!(
        effective.contains(r#""max_body_bytes":1024"#) && effective.contains(r#""value":"64""#),
        "{effective}"
    );
    assert!(effective.contains(r#""num_api_keys":1"#) && !effective.contains("secret"), "{effective}");
    for path in ["/docs", "/openapi.json"] {
        assert!(ask(path).starts_with("HTTP/1.1 404"), "{path}");
    }
    let log = server.end_well();
    assert!(log.contains("--compilation-config has no effect: there is no compiler"), "{log}");
    let tiny = program::Tiny::new();
    let model = tiny.path();
    for (flags, parts) in [
        (&["-tp", "2"][..], &["tensor_parallel_size", "not built"][..]),
        (&["-pp", "2"], &["--pipeline-parallel-size is not built"]),
        (&["-dp=2"], &["--data-parallel-size is not built"]),
        (&["--seed", "-1"], &["'-1' for '--seed", "0 or more"]),
        (&["--shutdown-timeout", "-1"], &["'-1' for '--shutdown-timeout", "seconds, 0 or more"]),
        (&["--write_timeout", "-1"], &["'-1' for '--write-timeout", "seconds, at least 1"]),
        (&["--port", "-1"], &["'-1' for '--port"]),
        (&["--max-requests-per-key", "-1"], &["'-1' for '--max-requests-per-key"]),
        (&["--tokens-per-minute-per-key", "-1"], &["'-1' for '--tokens-per-minute-per-key", "at least 1"]),
        (&["--max-body-bytes", "-1"], &["'-1' for '--max-body-bytes", "expected an amount of memory"]),
        (&["--max-body-bytes", "lots"], &["'lots' for '--max-body-bytes", "such as 2GiB"]),
    ] {
        let words = [&["serve", &model, "--port", "0"], flags].concat();
        run(&words, "").refused(parts);
    }
}

#[test]
fn a_load_on_the_server_is_measured() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.address);
    let pid = server.child.id().to_string();
    let flags = [
        "--num-prompts",
        "12",
        "--input-len",
        "9",
        "--output-len",
        "6",
        "--request-rate",
        "200",
        "--vocab-size",
        "200",
    ];
    let folder = tempfile::tempdir().expect("a folder for tests");
    let plot = folder.path().join("times.svg");
    let plot_flags = ["--plot", plot.to_str().expect("UTF-8")];
    let words = [&["bench", "serve", &url, "--server-pid", &pid][..], &flags, &plot_flags].concat();
    let report = run(&words, "").ok().lines().remove(0);
    let svg = std::fs::read_to_string(&plot).expect("it was drawn");
    assert!(
        svg.contains("tiny") && svg.contains("12 requests") && svg.matches("<polyline").count() == 4,
        "{svg}"
    );
    assert_eq!((&report["num_requests"], &report["num_failed"]), (&12.into(), &0.into()), "{report}");
    assert_eq!(report["output_tokens"], 72, "{report}");
    assert!(report["ttft_ms"]["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(report["server_cpu_us_per_token"].is_number(), "{report}");
    let words = ["bench", "serve", &url, "--input-len=9", "--output-len=6", "--num-prompts=12"];
    let one_by_one = [&words[..], &["--vocab-size=200", "--max-concurrency=1"]].concat();
    let report = run(&one_by_one, "").ok().lines().remove(0);
    let number = |pointer| report.pointer(pointer).and_then(serde_json::Value::as_f64).expect(pointer);
    assert!(12.0 * number("/e2e_ms/mean") <= 1e3 * number("/elapsed_s"), "some ran together: {report}");
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
    run(&words, "").failed(1, &["the server does not answer"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_log_holds_up_nobody() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let server = Server::logging_to(full);
    for _ in 0..3 {
        let answer = server.ask("POST /v1/completions", r#"{"prompt": "a", "max_tokens": 3, "made_up": 1}"#);
        assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
        // What is open is written there as well.
        server.signal("USR2");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).expect("Linux has it");
    let mut names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    assert!(names.any(|name| name.trim() == "quire-explain"), "the thread that writes it is gone");
    server.end_well();
}

#[test]
fn a_reader_of_the_log_that_stops_holds_up_nobody() {
    let flags = ["--num-gpu-blocks-override", "64", "--port", "0", "--log-level", "debug"];
    let mut server = Server::start_unread(&flags);
    // Some hundred lines each, more than a pipe takes.
    let ask = |server: &Server| {
        let body = r#"{"prompt": "a", "max_tokens": 200, "ignore_eos": true}"#;
        let answer = server.ask("POST /v1/completions", body);
        assert_eq!(answer["usage"]["completion_tokens"], 200, "{answer}");
    };
    (0..4).for_each(|_| ask(&server));
    server.read_log();
    ask(&server);
    let log = server.end_well();
    assert!(log.contains("lines of the log are left out here"), "{}", &log[log.len().saturating_sub(2000)..]);
}

#[test]
fn a_server_can_be_watched_in_a_terminal() {
    let server = Server::start(&["--api-key", "secret"]);
    let url = format!("http://{}", server.address);
    let shown = run(&["top", &url, "--api-key", "secret", "--once"], "").ok().stdout;
    for part in ["quire top", url.as_str(), "running    0", "KV blocks", "0 live, 0 cached, 64 free", "TTFT"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    run(&["top", &url, "--once"], "")
        .failed(1, &["the server does not answer: status 401", "an API key is missing"]);
    run(&["top", "ftp://host"], "").refused(&["expected http://HOST:PORT"]);
    server.end_well();
}

#[test]
fn what_memory_is_for_is_told_as_it_was_planned() {
    let server = Server::start(&["--swap-space", "0.001"]);
    let memory = server.ask("GET /v1/effective", "")["memory"].clone();
    let bytes = |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("{name} of {memory}"));
    let parts = ["weights_bytes", "kv_cache_bytes", "scratch_bytes", "row_state_bytes", "graphs_bytes"];
    assert_eq!(parts.map(bytes).iter().sum::<u64>(), bytes("total_bytes"));
    assert_eq!(bytes("num_blocks") * bytes("block_bytes"), bytes("kv_cache_bytes"));
    assert_eq!(bytes("weights_bytes"), bytes("loaded_weights_bytes"), "the plan was right");
    assert!(bytes("swap_bytes") > 0 && bytes("total_bytes") < bytes("device_bytes"), "{memory}");
    let log = server.end_well();
    let blocks = format!("{} blocks of ", memory["num_blocks"]);
    let line = log.lines().find(|line| line.contains("kv cache ")).expect("the start-up report");
    assert!(line.contains(&blocks), "{line}");
}
