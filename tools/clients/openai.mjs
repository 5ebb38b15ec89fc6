import OpenAI from "openai";

const [url, model, question, asksWeather, weather, person] = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content, more) =>
  client.chat.completions.create({ model, messages: [{ role: "user", content }], ...more });

const whole = await ask(question);
let stream = "";
for await (const chunk of await ask(question, { stream: true })) stream += chunk.choices[0].delta.content ?? "";
const tools = [{ type: "function", function: { name: "get_weather", parameters: weather } }];
const call = (await ask(asksWeather, { tools })).choices[0].message.tool_calls[0].function;
const format = { type: "json_schema", json_schema: { name: "person", schema: person, strict: true } };
const structured = (await ask(question, { response_format: format })).choices[0].message.content;

console.log(JSON.stringify({
  chat: whole.choices[0].message.content,
  stream,
  tool: [call.name, JSON.parse(call.arguments)],
  structured: JSON.parse(structured),
}));
