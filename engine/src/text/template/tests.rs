//! Whole templates, and what becomes of those that are not.

use super::*;

const CHATML: &str = "{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

fn template(source: &str) -> ChatTemplate {
    let tokens = NamedTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..NamedTokens::default() };
    ChatTemplate::at_start(source, tokens).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check(source: &str, prompt: &ChatPrompt, expected: Result<&str, &str>) {
    let rendered = template(source).render(prompt, UNIX_EPOCH).map_err(|error| error.to_string());
    assert_eq!(rendered.as_deref().map_err(String::as_str), expected);
}

fn hello() -> ChatPrompt {
    ChatPrompt::new(vec![ChatMessage::user("Hi"), ChatMessage::assistant("Well, ")])
}

#[test]
fn a_conversation_is_written_out() {
    let expected =
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, <|im_end|>\n<|im_start|>assistant\n";
    check(CHATML, &hello(), Ok(expected));
    check(CHATML, &ChatPrompt::new(vec![]), Err("the conversation is empty: expected at least one message"));
}

#[test]
fn a_template_without_tools_gets_an_empty_text_for_no_content() {
    let call = serde_json::json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
    let messages = vec![serde_json::from_value(call).expect("a message")];
    let expected = "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n";
    check(CHATML, &ChatPrompt::new(messages), Ok(expected));
}

#[test]
fn the_final_message_is_left_open() {
    let open = ChatPrompt { add_generation_prompt: false, continue_final_message: true, ..hello() };
    check(CHATML, &open, Ok("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, "));
    check("{{ messages[-1].content | trim }}!", &open, Ok("Well,"));
    check(
        "nothing",
        &open,
        Err("the chat template changes the final message, which therefore cannot be continued"),
    );
    let both = ChatPrompt { continue_final_message: true, ..hello() };
    check(CHATML, &both, Err("add_generation_prompt and continue_final_message exclude each other"));
}

#[test]
fn br_44_the_refusal_of_a_template_is_in_its_own_words() {
    let source =
        "{% if messages[0].role == 'user' %}\n{{ raise_exception('only systems speak') }}{% endif %}";
    let said = "the chat template refused the conversation: only systems speak (line 2 of the template)";
    check(source, &hello(), Err(said));
}

#[test]
fn a_template_that_goes_on_and_on_is_an_error_at_start() {
    let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let error = ChatTemplate::at_start(endless, NamedTokens::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains("more steps than a prompt can need"), "{error}");
}

/// None of them makes much, and each of their steps looks through a megabyte, or many of them.
#[test]
fn a_template_of_a_request_ends_within_a_second() {
    let text = "{% set x = 'x' * 900 %}{% set x = x * 900 %}";
    let list = "{% set x = range(90000) | list %}{% set y = range(90000) | list %}";
    for (before, endless) in [
        ("", "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"),
        (text, "{% for i in range(90000) %}{% if 'y' in x %}{% endif %}{% endfor %}"),
        (text, "{% for i in range(90000) %}{% set y = x | length %}{% endfor %}"),
        (text, "{% for i in range(90000) %}{% set y = x[:1] %}{% endfor %}"),
        (text, "{% for i in range(90000) %}{% set y = x == x ~ 'a' %}{% endfor %}"),
        (list, "{% for i in range(90000) %}{% set z = x == y %}{% endfor %}"),
        (list, "{% for i in range(90000) %}{% set z = x | max %}{% endfor %}"),
        (
            list,
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% set z = -1 in x %}{% endmacro %}{{ f(30) }}",
        ),
        (
            "",
            "{% for i in range(90000) %}{{ raise_exception }}{% for m in messages recursive %}{% if i %}{{ loop(messages) }}{% endif %}{% endfor %}{% endfor %}",
        ),
        (text, "{% set l = [x] * 90000 %}{{ (l | sort)[0] == 'a' }}"),
        (
            text,
            "{% set n = namespace(l=[x]) %}{% for i in range(17) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | unique | length }}",
        ),
        (text, "{{ [1] | batch(90000, x) | first | map('length') | max }}"),
        (text, "{% set l = range(90000) | map(attribute='a', default=x) | list %}{{ l == l[::-1] }}"),
    ] {
        let (source, start) = (format!("{before}{endless}"), Instant::now());
        let template = ChatTemplate::of_request(&source, NamedTokens::default());
        let error = template.and_then(|template| template.render(&hello(), UNIX_EPOCH)).expect_err(endless);
        assert!(matches!(error, PromptError::RequestTemplate { .. }), "{endless}: {error}");
        // Many times what it may take, for a busy machine: without a limit these go on for minutes.
        assert!(start.elapsed() < 20 * Limits::OF_REQUEST.time, "{endless}: {:?}", start.elapsed());
    }
}

#[test]
fn a_template_of_a_request_is_rendered_for_a_long_conversation() {
    let messages = (0..5000).map(|i| ChatMessage::user(format!("{i} and a few more words"))).collect();
    let template = ChatTemplate::of_request(CHATML, NamedTokens::default()).expect("a good template");
    let text = template.render(&ChatPrompt::new(messages), UNIX_EPOCH).expect("a long conversation");
    assert_eq!(text.matches("<|im_start|>user").count(), 5000);
}

#[test]
fn constants_are_not_repeated_to_more_than_memory_holds() {
    let literal = "x".repeat(10_000);
    let source = format!("{{% set x = '{literal}' * 1000 %}}").repeat(50);
    let error = ChatTemplate::of_request(&source, NamedTokens::default()).map(drop).expect_err("gigabytes");
    assert!(error.to_string().contains("than a prompt can need"), "{error}");
    let long = ChatTemplate::of_request(&"x".repeat(2 << 20), NamedTokens::default()).map(drop);
    assert!(long.expect_err("megabytes").to_string().contains("at most 1048576"));
}

#[test]
fn chains_that_no_stack_bears_are_refused() {
    let chained = |link: &str| format!("{{{{ 1{} }}}}", link.repeat(100_000));
    let mut bombs: Vec<String> = [
        "+1",
        "**1",
        " ~ 'a'",
        " and 1",
        " or 1",
        ".b",
        "[0]",
        "()",
        "|abs",
        " if 1 else 1",
        "+[]",
        " < 1",
        " is odd",
    ]
    .map(chained)
    .to_vec();
    for prefix in ["-", "not "] {
        bombs.push(format!("{{{{ {}1 }}}}", prefix.repeat(100_000)));
        bombs.push(format!("{{% set x = {}1 %}}", prefix.repeat(100_000)));
        bombs.push(format!("{{{{ {}1 ", prefix.repeat(100_000)));
    }
    bombs.push(format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(100_000)));
    bombs.push(format!("{{% filter abs{} %}}{{% endfilter %}}", "|abs".repeat(100_000)));
    bombs.push(format!("{{% for x in [{}", "[".repeat(100_000)));
    for bomb in bombs {
        let start: String = bomb.chars().take(30).collect();
        ChatTemplate::of_request(&bomb, NamedTokens::default()).err().unwrap_or_else(|| panic!("{start}"));
    }
    let list = format!("{{{{ [{}]|length }}}}", "'a', ".repeat(50_000));
    check(&list, &hello(), Ok("50000"));
    // As long as may be, on the smallest stack that anything is rendered on.
    let longest = ["{{ ", &"-".repeat(990), "1 }}"].concat();
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || check(&longest, &hello(), Ok("1")))
        .expect("a thread")
        .join()
        .expect("it bears that");
}

#[test]
fn no_template_ends_the_process() {
    for bomb in [
        "{{ (['x' * 100000] * 100000) | join('y' * 1000) | length }}",
        "{% set n = namespace(a=[1, 2]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | list }}",
        "{% set x = 'x' * 900 %}{% set x = x * 900 %}{% for i in range(90000) %}{{ x }}{% endfor %}",
        "{% set x = 'x' * 900 %}{% set x = x * 900 %}{{ x | replace('x', x) | length }}",
        "{% set n = namespace(a='xxxx') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}{{ n.a }}",
        "{% set n = namespace(a='xxxx') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
        "{% set n = namespace(l=[]) %}{% for i in range(90000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
        "{% set n = namespace(l=1) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
        "{% set n = namespace(l={}) %}{% for i in range(9000) %}{% set n.l = dict(a=n.l) %}{% endfor %}{{ n.l }}",
        "{% macro f() %}{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         {% endfor %}{% endfor %}{% endmacro %}{% set x = f() %}",
        "{{ '%0900000000d' | format(1) }}",
        "{{ messages | tojson(indent=999999999) }}",
        "{{ ['x'] | map('indent', 999999999, true) | join }}",
        "{{ [1] | batch(999999999, 'x') | list }}",
    ] {
        let error = ChatTemplate::at_start(bomb, NamedTokens::default()).map(drop);
        let error = error.expect_err(bomb).to_string();
        assert!(error.contains("than a prompt can need") || error.contains("too deeply"), "{bomb}: {error}");
    }
    let own = "{% set n = namespace() %}{% set n.a = n %}{{ n }}";
    assert!(ChatTemplate::at_start(own, NamedTokens::default()).is_err());
}

#[test]
fn what_fails_with_every_conversation_is_an_error_at_start_unless_requests_may_mend_it() {
    for broken in [
        "{% include '/etc/passwd' %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% for i in range(100000000) %}x{% endfor %}",
        "{{ messages[0].content.no_such_method() }}",
        "{{ 1 + 'x' }}",
        "{{ 'x' % 3 }}",
        "{{ '%s%s' % ('a',) }}",
        "{{ '%d' % 'a' }}",
    ] {
        assert!(ChatTemplate::at_start(broken, NamedTokens::default()).is_err(), "{broken}");
    }
    let trouble = |source| template(source).trouble().map(str::to_owned);
    assert!(trouble("{{ own.settings.style }}").is_some_and(|trouble| trouble.contains("undefined")));
    for good in [CHATML, "{{ raise_exception('no') }}", "{{ messages[2].content.upper() }}", "{{ unknown }}"]
    {
        assert_eq!(trouble(good), None, "{good}");
    }
}

#[test]
fn br_44_a_broken_template_is_an_error_at_start() {
    for source in ["{% if %}", "{{ messages | no_such_filter }}", "{{ no_such_function() }}"] {
        assert!(ChatTemplate::at_start(source, NamedTokens::default()).is_err(), "{source}");
    }
}

#[test]
fn the_dialect_is_that_of_the_hub() {
    check("{{ bos_token }}{{ strftime_now('%d %b %Y') }}", &hello(), Ok("<s>01 Jan 1970"));
    check("{% if messages[0].content.startswith('H') %}yes{% endif %}", &hello(), Ok("yes"));
    check("  {% for i in [1, 2] %}\n{{ i }}{% break %}\n  {% endfor %}\n", &hello(), Ok("1"));
    check(
        "{{ '%s is %d' % ('a', 3) }} {{ '%05.1f%%' % 2.25 }} {{ '%(a)s' % {'a': 1} }}",
        &hello(),
        Ok("a is 3 002.2% 1"),
    );
    check("{{ '%s-%s' % (messages[0].role, 1) ~ '%-4d|' % 7 }}", &hello(), Ok("user-17   |"));
    let mut prompt = hello();
    prompt.template_variables.insert("tools".into(), serde_json::json!([{"name": "<f>", "n": 1}]));
    check("{{ tools | tojson }}", &prompt, Ok(r#"[{"name": "<f>", "n": 1}]"#));
    check("{{ tools[0] | tojson(indent=2) }}", &prompt, Ok("{\n  \"name\": \"<f>\",\n  \"n\": 1\n}"));
}

#[test]
fn only_text_is_built() {
    let parts = |json| serde_json::from_value(json).unwrap();
    let text = parts(
        serde_json::json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    );
    check("{{ messages[0].content }}", &ChatPrompt::new(vec![text]), Ok("a\nb"));
    for broken in [serde_json::json!({"type": "text"}), serde_json::json!({"type": "text", "text": 1})] {
        let broken = parts(serde_json::json!({"role": "user", "content": [broken]}));
        let said = "a part of a message has the type text and no text: expected a string";
        check("x", &ChatPrompt::new(vec![broken]), Err(said));
    }
    let image =
        parts(serde_json::json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}));
    check(
        "x",
        &ChatPrompt::new(vec![image]),
        Err("message content of type image_url is not built yet: expected text"),
    );
    let made_up = parts(serde_json::json!({"role": "user", "content": [{"type": "bogus"}]}));
    let said = "a part of a message has the type \"bogus\": expected text";
    check("x", &ChatPrompt::new(vec![made_up]), Err(said));
}
