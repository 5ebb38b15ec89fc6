import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

const [url, name, question, asksWeather, weather, person, picture] = JSON.parse(process.argv[2]);
const provider = createOpenAICompatible({ name: "wgemma", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const model = provider(name);

const whole = await generateText({ model, prompt: question });
let stream = "";
for await (const text of streamText({ model, prompt: question }).textStream) stream += text;
const tools = { get_weather: tool({ inputSchema: jsonSchema(weather) }) };
const call = (await generateText({ model, prompt: asksWeather, tools })).toolCalls[0];
const output = Output.object({ schema: jsonSchema(person) });
const structured = (await generateText({ model, prompt: question, output })).output;
const content = [{ type: "text", text: "What do you see?" }, { type: "image", image: picture, mediaType: "image/png" }];
const seen = (await generateText({ model, messages: [{ role: "user", content }] })).text;

console.log(JSON.stringify({ chat: whole.text, stream, tool: [call.toolName, call.input], structured, seen }));
