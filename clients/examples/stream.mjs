#!/usr/bin/env node
// An answer as it is written, with nothing but fetch: server-sent events of the Responses API.
// usage: stream.mjs [BASE_URL]      (http://127.0.0.1:8642/v1)
const base = process.argv[2] ?? "http://127.0.0.1:8642/v1";

async function* events(response) {
  let text = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

const response = await fetch(`${base}/responses`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ input: "Name three rivers.", stream: true, max_output_tokens: 48 }),
});
if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
for await (const event of events(response)) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
  if (event.response?.usage) console.log(`\n[${event.response.status}: ${event.response.usage.output_tokens} tokens]`);
}
