import Anthropic from "@anthropic-ai/sdk";

const [url, model, question, asksWeather, weather, person, picture] = JSON.parse(process.argv[2]);
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const request = (content, more) => ({ model, max_tokens: 99, messages: [{ role: "user", content }], ...more });
const ask = (content, more) => client.messages.create(request(content, more));

const whole = await ask(question);
const stream = await client.messages.stream(request(question)).finalText();
const tools = [{ name: "get_weather", input_schema: weather }];
const call = (await ask(asksWeather, { tools })).content[0];
const format = { type: "json_schema", schema: person };
const structured = (await ask(question, { output_config: { format } })).content[0].text;
const source = { type: "base64", media_type: "image/png", data: picture };
const seen = (await ask([{ type: "image", source }, { type: "text", text: "What do you see?" }])).content[0].text;

console.log(JSON.stringify({
  chat: whole.content[0].text,
  stream,
  tool: [call.name, call.input],
  structured: JSON.parse(structured),
  seen,
}));
