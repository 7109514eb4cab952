// OpenAI's own JavaScript client against a server: node openai_javascript.cjs URL.
// The package is found through NODE_PATH.

const assert = require("node:assert/strict");
const OpenAI = require("openai");
const { VERSION } = require("openai/version");

const URL = process.argv[2].replace(/\/$/, "");
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "Hi" }];
// Outputs have the length that was asked for, whatever the model says.
const full = { ignore_eos: true, temperature: 0 };
const tool = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};
let model;

async function refused(kind, param, promise) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind, `${error}`);
    assert.equal(error.param, param, JSON.stringify(error.error));
    assert.equal(error.code, error.status);
    assert.ok(error.type && error.error.message);
    return true;
  });
}

async function gauge(name) {
  const text = await (await fetch(`${URL}/metrics`)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(`quire:${name}`));
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

async function idle() {
  const started = Date.now();
  const live = `kv_blocks{model_name="${model}",state="live"}`;
  while ((await gauge("num_requests_running")) + (await gauge("num_requests_waiting")) + (await gauge(live))) {
    assert.ok(Date.now() - started < 10_000, "it runs still");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const checks = {
  async models() {
    const cards = [];
    for await (const card of client.models.list()) cards.push(card);
    model = cards[0].id;
    assert.ok(cards[0].max_model_len > 0);
  },

  async completions() {
    const answer = await client.completions.create({ model, prompt: "abc", max_tokens: 5, logprobs: 2, ...full, n: 2, seed: 1, temperature: 1 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
    assert.equal(answer.usage.completion_tokens, 10);
    assert.equal(answer.choices[0].logprobs.tokens.length, 5);
  },

  async streams() {
    const body = { model, messages, max_tokens: 8, ...full };
    const whole = await client.chat.completions.create(body);
    const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage, whole.usage);
  },

  async helper() {
    const stream = client.chat.completions.stream({ model, messages, max_tokens: 8, ...full });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, text);
    assert.equal(final.choices[0].finish_reason, "length");
  },

  async errors() {
    await refused(OpenAI.NotFoundError, "model", client.completions.create({ model: "nobody", prompt: "a" }));
    await refused(OpenAI.BadRequestError, "top_p", client.completions.create({ model, prompt: "a", top_p: 0 }));
    await refused(OpenAI.BadRequestError, "n", client.chat.completions.create({ model, messages, n: 0, stream: true }));
  },

  async tools() {
    const body = { model, messages, max_tokens: 4, tools: [tool], ...full };
    for (const tool_choice of ["none", "auto"]) {
      const answer = await client.chat.completions.create({ ...body, tool_choice });
      assert.ok(["length", "tool_calls"].includes(answer.choices[0].finish_reason));
    }
  },

  async logprobs() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 3, logprobs: true, top_logprobs: 2, ...full });
    const { content } = answer.choices[0].logprobs;
    assert.deepEqual(content.map((one) => one.top_logprobs.length), [2, 2, 2]);
    assert.ok(content.every((one) => one.logprob <= 0 && Array.isArray(one.bytes)));
  },

  async formats() {
    const properties = { city: { type: "string", enum: ["Rome", "Oslo"] } };
    const schema = { type: "object", properties, required: ["city"], additionalProperties: false };
    const response_format = { type: "json_schema", json_schema: { name: "x", strict: true, schema } };
    const body = { model, messages, max_tokens: 100, temperature: 0, response_format };
    const parsed = (await client.chat.completions.parse(body)).choices[0].message.parsed;
    assert.ok(["Rome", "Oslo"].includes(parsed.city), JSON.stringify(parsed));
    const broken = { type: "json_schema", json_schema: { name: "x", schema: { type: 5 } } };
    await refused(OpenAI.BadRequestError, "response_format", client.chat.completions.create({ ...body, response_format: broken }));
  },

  async required_call() {
    const properties = { city: { type: "string", enum: ["Rome", "Oslo"] } };
    const parameters = { type: "object", properties, required: ["city"], additionalProperties: false };
    const tools = [{ type: "function", function: { name: "weather", parameters } }];
    const body = { model, messages, max_tokens: 150, temperature: 0, tools, tool_choice: "required", parallel_tool_calls: false };
    const stream = client.chat.completions.stream(body);
    const { finish_reason, message } = (await stream.finalChatCompletion()).choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.ok(["Rome", "Oslo"].includes(JSON.parse(message.tool_calls[0].function.arguments).city));
  },

  async cancellation() {
    const body = { model, prompt: "abc", max_tokens: 400, ...full };
    const stream = await client.completions.create({ ...body, stream: true });
    for await (const _ of stream) break;
    await idle();
    const controller = new AbortController();
    const answer = client.completions.create({ ...body, n: 4, seed: 1, temperature: 1 }, { signal: controller.signal });
    setTimeout(() => controller.abort(), 100);
    await answer.then(() => {}, (error) => assert.ok(error instanceof OpenAI.APIUserAbortError, `${error}`));
    await idle();
  },
};

(async () => {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}: ${error}`);
    }
  }
  const number = Object.keys(checks).length;
  console.log(`openai (npm) ${VERSION}: ${number - failed} of ${number} passed`);
  process.exit(failed ? 1 : 0);
})();
