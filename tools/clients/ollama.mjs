import { Ollama } from "ollama";

const [url, model, question, asksWeather, weather, person, picture] = JSON.parse(process.argv[2]);
const client = new Ollama({ host: url });
const ask = (content, more) => client.chat({ model, messages: [{ role: "user", content }], ...more });

const whole = await ask(question);
let stream = "";
for await (const part of await ask(question, { stream: true })) stream += part.message.content;
const tools = [{ type: "function", function: { name: "get_weather", parameters: weather } }];
const call = (await ask(asksWeather, { tools })).message.tool_calls[0].function;
const structured = (await ask(question, { format: person })).message.content;
const looks = { role: "user", content: "What do you see?", images: [picture] };
const seen = (await client.chat({ model, messages: [looks] })).message.content;

console.log(JSON.stringify({
  chat: whole.message.content,
  stream,
  tool: [call.name, call.arguments],
  structured: JSON.parse(structured),
  seen,
}));
