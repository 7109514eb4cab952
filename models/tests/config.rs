//! Configurations: what is read, and what bad values get.

mod common;

use std::path::PathBuf;

use common::chain;
use quire_kernels::DType;
use quire_models::testing::{GoldenModel, TinyModel};
use quire_models::{Checkpoint, ConfigError, GenerationConfig, LoadOptions, ModelConfig, RopeScaling};
use serde_json::{Map, Value, json};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

fn read(model: &TinyModel) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&model.config_json())
}

/// Checks what a bad field gets.
fn check(field: &str, value: Value, expected: &str) {
    let error = read(&TinyModel::llama().with_config(field, value)).expect_err("the value must be refused");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn bad_values_name_field_expected_and_given() {
    check("num_hidden_layers", json!(0), "num_hidden_layers: expected 1 to 65536, given 0");
    check("num_hidden_layers", json!(1_000_000), "num_hidden_layers: expected 1 to 65536, given 1000000");
    check("hidden_size", json!(-3), "hidden_size: expected a whole number of at least 0, given -3");
    check("hidden_size", json!("64"), "hidden_size: expected a whole number of at least 0, given \"64\"");
    check("hidden_size", json!(null), "hidden_size: missing");
    check("vocab_size", json!(1_u64 << 40), "vocab_size: expected 1 to 4294967295, given 1099511627776");
    check(
        "num_key_value_heads",
        json!(3),
        "num_attention_heads: expected a multiple of num_key_value_heads = 3, given 4",
    );
    check("num_key_value_heads", json!(0), "num_key_value_heads: expected 1 to 4294967295, given 0");
    check("head_dim", json!(15), "head_dim: expected an even number, given 15");
    check("rms_norm_eps", json!(-1.0), "rms_norm_eps: expected a finite number of at least 0, given -1");
    check("rope_theta", json!(0), "rope_theta: expected a number above 1, given 0");
    check("eos_token_id", json!([2, 288]), "eos_token_id: 288 is not in the vocabulary of 288 tokens");
    check("tie_word_embeddings", json!(1), "tie_word_embeddings: expected true or false, given 1");
    check("torch_dtype", json!("int8"), "torch_dtype: expected float32, float16 or bfloat16, given int8");
}

#[test]
fn head_dim_follows_from_the_sizes_where_it_can() {
    let model = TinyModel::llama().with_config("head_dim", json!(null));
    assert_eq!(read(&model).unwrap().head_dim, 16);
    let error = read(&model.with_config("num_attention_heads", 6)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "head_dim: missing, and hidden_size = 64 is no multiple of num_attention_heads = 6"
    );
}

#[test]
fn quantized_folders_are_refused_with_what_works() {
    let model = TinyModel::llama().with_config("quantization_config", json!({"quant_method": "hqq"}));
    let error = read(&model).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "quantization_config.quant_method: \"hqq\" is not supported; known are gptq, awq, fp8"
        ),
        "{error}"
    );
}

#[test]
fn rope_scaling_is_read_or_refused() {
    let with = |value: Value| read(&TinyModel::llama().with_config("rope_scaling", value));
    assert_eq!(with(json!(null)).unwrap().rope.scaling, RopeScaling::None);
    let linear = with(json!({"type": "linear", "factor": 2.0})).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    assert!(matches!(with(llama3).unwrap().rope.scaling, RopeScaling::Llama3 { .. }));
    let error = with(json!({"rope_type": "mrope", "factor": 4.0})).unwrap_err().to_string();
    assert_eq!(
        error,
        "rope_scaling.rope_type: \"mrope\" is not supported; known are default, linear, dynamic, yarn, llama3, longrope"
    );
    let error = with(json!({"rope_type": "linear"})).unwrap_err().to_string();
    assert_eq!(error, "rope_scaling.factor: missing");
}

#[test]
fn the_newer_place_of_rope_and_dtype_is_read_too() {
    let model = TinyModel::llama()
        .with_config("rope_parameters", json!({"rope_theta": 5e5, "rope_type": "default"}))
        .with_config("dtype", "bfloat16");
    let config = read(&model).unwrap();
    assert_eq!((config.rope.theta, config.dtype), (5e5, Some(DType::BF16)));
}

#[test]
fn a_window_counts_only_where_it_is_used() {
    let window = |model: TinyModel| {
        let config = read(&model).unwrap();
        (0..config.num_layers).map(|layer| config.window(layer)).collect::<Vec<_>>()
    };
    let qwen = || TinyModel::qwen2().with_config("sliding_window", 32);
    assert_eq!(window(qwen().with_config("use_sliding_window", false)), [None, None]);
    assert_eq!(window(qwen()), [None, None], "the reference does not use it unless told to");
    let used = qwen().with_config("use_sliding_window", true);
    assert_eq!(window(used.clone()), [None, None], "the first 28 layers see everything by default");
    assert_eq!(window(used.with_config("max_window_layers", 1)), [None, Some(32)]);
    let types = qwen().with_config("layer_types", json!(["sliding_attention", "full_attention"]));
    assert_eq!(window(types), [Some(32), None]);
    assert_eq!(window(TinyModel::llama().with_config("sliding_window", 32)), [None, None]);
}

#[test]
fn biases_follow_from_the_architecture() {
    let biases = |config: &ModelConfig| (config.qkv_bias, config.output_bias, config.mlp_bias);
    assert_eq!(biases(&read(&TinyModel::qwen2()).unwrap()), (true, false, false));
    assert_eq!(biases(&read(&TinyModel::llama()).unwrap()), (false, false, false));
    let biased = TinyModel::llama().with_config("attention_bias", true).with_config("mlp_bias", true);
    assert_eq!(biases(&read(&biased).unwrap()), (true, true, true));
}

#[test]
fn what_an_architecture_does_not_read_changes_nothing() {
    let strays = json!({
        "attention_multiplier": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0,
        "query_pre_attn_scalar": 7, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0,
        "hidden_activation": "gelu_pytorch_tanh", "norm_topk_prob": true, "moe_intermediate_size": 3,
        "shared_expert_intermediate_size": 3, "qkv_bias": true, "rope_local_base_freq": 77.0, "mlp_only_layers": [0],
    });
    let with = |model: TinyModel| {
        let mut config = model.config_json();
        config.extend(object(strays.clone()));
        ModelConfig { raw: model.config_json(), ..ModelConfig::from_json(&config).unwrap() }
    };
    for model in [TinyModel::llama(), TinyModel::qwen2()] {
        assert_eq!(with(model.clone()), read(&model).unwrap());
    }
    let mut mistral = TinyModel::llama();
    mistral.architecture = "MistralForCausalLM";
    let biased = mistral.with_config("attention_bias", true).with_config("mlp_bias", true);
    let config = read(&biased).unwrap();
    assert!(!(config.qkv_bias || config.output_bias || config.mlp_bias), "they have none");
}

#[test]
fn what_the_reference_assumes_need_not_be_said() {
    let mut config = TinyModel::qwen2().config_json();
    config.remove("max_position_embeddings");
    assert_eq!(ModelConfig::from_json(&config).unwrap().max_position_embeddings, 32_768);
}

#[test]
fn rope_scaling_goes_before_rope_parameters() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let parameters = json!({"rope_type": "default", "rope_theta": 777.0});
    let both = |scaling: Value| {
        TinyModel::llama()
            .with_config("rope_parameters", parameters.clone())
            .with_config("rope_scaling", scaling)
    };
    let mut config = both(yarn.clone()).config_json();
    config.remove("rope_theta");
    let refused = ModelConfig::from_json(&config).unwrap_err().to_string();
    assert!(refused.contains("rope_parameters.rope_theta = 777"), "{refused}");
    config["rope_scaling"]["rope_theta"] = json!(555.0);
    let rope = ModelConfig::from_json(&config).unwrap().rope;
    assert!(rope.theta == 555.0 && matches!(rope.scaling, RopeScaling::Yarn { factor: 4.0, .. }), "{rope:?}");
    config["rope_scaling"] = json!({});
    assert_eq!(ModelConfig::from_json(&config).unwrap().rope.theta, 777.0, "one that says nothing is none");
    config["rope_parameters"] = json!({"full_attention": {"rope_type": "linear", "factor": 2.0}});
    let refused = ModelConfig::from_json(&config).unwrap_err().to_string();
    assert!(refused.contains("one for all layers of this architecture"), "{refused}");
}

#[test]
fn layers_with_a_window_have_the_base_that_they_have_in_the_reference() {
    let ropes = |rope: Value| {
        let mut model = TinyModel::llama();
        model.architecture = "Gemma3ForCausalLM";
        let mut config = model.config_json();
        config.retain(|field, _| !field.starts_with("rope"));
        config.extend(object(rope));
        let config = ModelConfig::from_json(&config).unwrap();
        let is_linear = matches!(config.rope.scaling, RopeScaling::Linear { .. });
        (config.rope.theta, is_linear, config.local_rope.unwrap().theta)
    };
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    let plain = json!({"rope_type": "default"});
    assert_eq!(ropes(json!({})), (1e6, false, 10_000.0));
    assert_eq!(ropes(json!({"rope_scaling": linear, "rope_local_base_freq": 77.0})), (1e6, true, 77.0));
    let kinds = json!({"full_attention": linear, "sliding_attention": plain});
    assert_eq!(ropes(json!({"rope_parameters": kinds})), (1e6, true, 10_000.0));
    let top = json!({"rope_parameters": kinds, "rope_theta": 5e4, "rope_local_base_freq": 77.0});
    assert_eq!(ropes(top), (5e4, true, 77.0));
    let full = json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}}});
    assert_eq!(ropes(full), (1e5, true, 10_000.0));
    let own = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 300.0}},
                     "rope_scaling": linear});
    assert_eq!(ropes(own), (1e5, true, 300.0));
}

#[test]
fn defaults_of_sampling_that_cannot_be_read_are_told_and_not_heeded() {
    let file = json!({"top_k": -1, "temperature": "0.6", "max_new_tokens": 50.0, "top_p": 0.9});
    let read = GenerationConfig::from_json(&object(file)).unwrap();
    assert_eq!(
        (read.top_k, read.temperature, read.max_new_tokens, read.top_p),
        (None, None, Some(50), Some(0.9))
    );
    assert_eq!(read.unread.len(), 1, "{:?}", read.unread);
    assert!(read.unread[0].to_string().contains("temperature"), "{}", read.unread[0]);
}

#[test]
fn br31_eos_ids_join() {
    let generation =
        GenerationConfig::from_json(&object(json!({"eos_token_id": [5, 7], "top_k": 20}))).unwrap();
    assert_eq!((generation.eos_token_ids, generation.top_k), (vec![5, 7], Some(20)));

    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().with_config("eos_token_id", 9).write_folder(folder.path()).unwrap();
    let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default()).unwrap();
    assert_eq!(
        Vec::from_iter(checkpoint.eos_token_ids()),
        [2, 9],
        "generation_config.json has 2, config.json 9"
    );
    assert_eq!(Vec::from_iter(checkpoint.tokenizer().unwrap().eos_token_ids().clone()), [2]);
}

#[test]
fn a_folder_and_a_gguf_file_of_one_model_have_one_configuration() {
    for model in [TinyModel::llama(), TinyModel::qwen2()] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        model.write_gguf(&path).unwrap();
        let from_gguf = Checkpoint::open(&path, &LoadOptions::default()).unwrap();
        let mut from_json = read(&model).unwrap();
        from_json.raw = Map::new();
        assert_eq!(*from_gguf.config(), from_json);
    }
}

#[test]
fn a_broken_config_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    std::fs::write(folder.path().join("config.json"), "{\"hidden_size\": ").unwrap();
    let error = Checkpoint::open(folder.path(), &LoadOptions::default()).unwrap_err();
    assert!(chain(&error).contains("config.json is not valid json: line 1"), "{}", chain(&error));
}

fn golden_configs() -> Vec<(String, Map<String, Value>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, GoldenModel::read(&path).unwrap().config)
        })
        .collect()
}

/// What transformers wrote before it had `rope_parameters` and lists of layer types.
fn in_old_words(mut config: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(mut rope)) = config.remove("rope_parameters") else { return config };
    if let Some(local) = rope.remove("sliding_attention") {
        config.insert("rope_local_base_freq".to_owned(), local["rope_theta"].clone());
        rope = rope["full_attention"].as_object().unwrap().clone();
    }
    for field in ["rope_theta", "partial_rotary_factor"] {
        rope.remove(field).into_iter().for_each(|value| drop(config.insert(field.to_owned(), value)));
    }
    let kind = rope.remove("rope_type").unwrap();
    if kind != "default" {
        rope.insert("type".to_owned(), kind);
        config.insert("rope_scaling".to_owned(), Value::Object(rope));
    }
    if config["model_type"] == "gemma2" {
        config.remove("layer_types");
    }
    if config["model_type"] == "gemma3_text" {
        config.remove("layer_types");
        config.insert("sliding_window_pattern".to_owned(), json!(3));
    }
    let dtype = config.remove("dtype").unwrap();
    config.insert("torch_dtype".to_owned(), dtype);
    config
}

#[test]
fn older_spellings_mean_the_same() {
    for (name, config) in golden_configs() {
        let read = |config: &Map<String, Value>| ModelConfig {
            raw: Map::new(),
            ..ModelConfig::from_json(config).unwrap()
        };
        assert_eq!(read(&in_old_words(config.clone())), read(&config), "{name}");
    }
}

#[test]
fn defaults_are_those_of_the_reference_and_null_is_none() {
    let read = |name: &str, fields: Value| {
        let (_, mut config) = golden_configs().into_iter().find(|(given, _)| given == name).unwrap();
        for (field, value) in object(fields) {
            match value == "absent" {
                true => drop(config.remove(&field)),
                false => drop(config.insert(field, value)),
            }
        }
        ModelConfig::from_json(&config).unwrap()
    };
    let absent = json!({"attn_logit_softcapping": "absent", "final_logit_softcapping": "absent", "head_dim": "absent"});
    let config = read("gemma2", absent);
    assert_eq!(
        (config.attention_soft_cap, config.logits_soft_cap, config.head_dim),
        (Some(50.0), Some(30.0), 256)
    );
    let config = read("gemma2", json!({"attn_logit_softcapping": null, "final_logit_softcapping": null}));
    assert_eq!((config.attention_soft_cap, config.logits_soft_cap), (None, None));
    assert_eq!(read("mistral", json!({"sliding_window": "absent"})).window(0), Some(4096));
    assert_eq!(read("mistral", json!({"sliding_window": null})).window(0), None);
    assert_eq!(read("granite", json!({"attention_multiplier": "absent"})).attention_scale, 1.0);
    assert!(read("gemma3", json!({"tie_word_embeddings": "absent"})).tie_word_embeddings);
}

#[test]
fn a_stretched_context_is_as_long_as_it_is_stretched() {
    let context = |name: &str| {
        let (_, config) = golden_configs().into_iter().find(|(given, _)| given == name).unwrap();
        ModelConfig::from_json(&config).unwrap().max_context()
    };
    // 64 doubled, 32 times four, and those that say the stretched length themselves.
    assert_eq!((context("llama-dynamic"), context("llama-yarn")), (128, 128));
    assert_eq!((context("llama-llama3"), context("phi3-longrope"), context("llama-linear")), (128, 256, 128));
}

#[test]
fn what_is_not_built_is_refused_by_field_and_value() {
    let check = |name: &str, field: &str, value: Value, said: &str| {
        let (_, mut config) = golden_configs().into_iter().find(|(given, _)| given == name).unwrap();
        config.insert(field.to_owned(), value);
        assert_eq!(ModelConfig::from_json(&config).unwrap_err().to_string(), said);
    };
    check(
        "gemma2",
        "layer_types",
        json!(["sliding_attention", "chunked_attention", "full_attention", "full_attention"]),
        "layer_types: \"chunked_attention\" is not supported, expected \"sliding_attention\" or \"full_attention\"",
    );
    check(
        "gemma2",
        "layer_types",
        json!(["full_attention"]),
        "layer_types: a list of 1 is not supported, expected num_hidden_layers = 4",
    );
    check(
        "gemma3",
        "use_bidirectional_attention",
        json!(true),
        "use_bidirectional_attention: true is not supported, expected false",
    );
    check(
        "gemma2",
        "final_logit_softcapping",
        json!(-1.0),
        "final_logit_softcapping: expected a number above 0, given -1",
    );
    check("granite", "logits_scaling", json!(0), "logits_scaling: expected a number above 0, given inf");
    check(
        "llama",
        "rope_parameters",
        json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "partial_rotary_factor: 8 of 16 elements is not supported, expected all of them for this architecture",
    );
    check(
        "phi3-longrope",
        "rope_parameters",
        json!({"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [1.0]}),
        "rope_scaling.short_factor: 1 factors is not supported, expected one for each frequency, 8",
    );
    check("qwen3-moe", "num_experts_per_tok", json!(9), "num_experts_per_tok: expected 1 to 8, given 9");
    check("mixtral", "num_local_experts", json!(0), "num_experts: expected 1 to 1048576, given 0");
    check(
        "mixtral",
        "num_local_experts",
        json!(1 << 20),
        "num_experts in 2 layers: expected 1 to 1048576, given 2097152",
    );
    check(
        "mixtral",
        "num_local_experts",
        json!("many"),
        "num_local_experts: expected a whole number of at least 0, given \"many\"",
    );
    let (_, mut config) = golden_configs().into_iter().find(|(given, _)| given == "qwen2-moe").unwrap();
    config.extend(object(json!({"use_sliding_window": true, "sliding_window": 32, "layer_types": null})));
    assert_eq!(
        ModelConfig::from_json(&config).unwrap_err().to_string(),
        "use_sliding_window: true is not supported, expected false for this architecture"
    );
}
