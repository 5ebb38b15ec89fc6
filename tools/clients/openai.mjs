import OpenAI, { toFile } from "openai";

const [url, model, question, asksWeather, weather, person, picture, sound] = JSON.parse(process.argv[2]);
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
const image_url = { url: `data:image/png;base64,${picture}` };
const seen = (await ask([{ type: "image_url", image_url }, { type: "text", text: "What do you see?" }])).choices[0];
const file = await toFile(Buffer.from(sound, "base64"), "sound.wav");
const heard = (await client.audio.transcriptions.create({ model, file })).text;

console.log(JSON.stringify({
  chat: whole.choices[0].message.content,
  stream,
  tool: [call.name, JSON.parse(call.arguments)],
  structured: JSON.parse(structured),
  seen: seen.message.content,
  heard,
}));
