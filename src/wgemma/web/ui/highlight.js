/**
 * Simple syntax highlighting: comments, strings, numbers and keywords of common languages.
 *
 * One regular expression per family of languages, run once over finished code; unknown languages stay plain. Every
 * alternative is bounded or runs to the end of the code, so hostile code is not slower than other code.
 */

const LONGEST = 50_000;

const STRING = /"(?:[^"\\\n]|\\.){0,1000}"|'(?:[^'\\\n]|\\.){0,200}'/.source;
const NUMBER = /\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w{0,3}\b/.source;
const SLASHES = /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/.source;
const HASH = /#[^\n]*/.source;

const C_WORDS =
  "abstract as async await bool break case catch char class const constexpr continue default defer delete do " +
  "double else enum export extends extern false final finally float fn for from func function go goto if impl " +
  "implements import in inline instanceof int interface internal is let long loop match mod move mut namespace " +
  "new nil null nullptr of operator override package private protected pub public range ref return select self " +
  "short signed sizeof static struct super switch template this throw trait true try type typedef typeof u32 " +
  "i32 f32 undefined union unsafe unsigned use using var virtual void volatile where while with yield";
const HASH_WORDS =
  "and as assert async await break case class continue def del do done echo elif else end esac except export " +
  "False fi finally for from function global if import in is lambda local match module next nil None nonlocal " +
  "not or pass raise require rescue return self set then True try unless until while with yield true false null";
const SQL_WORDS =
  "select from where and or not insert into values update set delete create table drop alter index join left " +
  "right inner outer full on as group by order having limit offset union all distinct null is in like between " +
  "case when then else end primary key references default with";

const C = family(SLASHES, `${STRING}|\`(?:[^\`\\\\]|\\\\.){0,2000}\``, C_WORDS);
const SCRIPT = family(HASH, `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${STRING}`, HASH_WORDS);
const SQL = family(/--[^\n]*|\/\*[^]*?(?:\*\/|$)/.source, STRING, SQL_WORDS, "gi");
const JSON_LIKE = family("(?!)", STRING, "true false null");
const MARKUP = new RegExp(
  `(?<comment><!--[^]*?(?:-->|$))|(?<string>"[^"\\n]{0,1000}"|'[^'\\n]{0,1000}')|` +
    "(?<word><\\/?[\\w-]+|\\/?>)|(?<number>(?!))",
  "g",
);

/** @type {Record<string, RegExp>} */
const LANGUAGES = {};
for (const [names, expression] of /** @type {[string, RegExp][]} */ ([
  [
    "c cpp c++ h cs csharp css dart go glsl hlsl java javascript js jsx kotlin kt mjs php rs rust scala swift ts tsx " +
      "typescript wgsl zig",
    C,
  ],
  ["bash python py rb ruby sh shell zsh yaml yml toml ini dockerfile make makefile perl r julia jl elixir", SCRIPT],
  ["sql sqlite postgresql mysql", SQL],
  ["json json5 jsonc", JSON_LIKE],
  ["html xml svg vue", MARKUP],
])) {
  for (const name of names.split(" ")) LANGUAGES[name] = expression;
}

/** @param {string} comment @param {string} string @param {string} words @param {string} [flags] */
function family(comment, string, words, flags = "g") {
  const word = `\\b(?:${words.split(" ").join("|")})\\b`;
  return new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<word>${word})|(?<number>${NUMBER})`, flags);
}

/**
 * Code as text and coloured spans.
 * @param {string} text @param {string} language @returns {(Node | string)[]}
 */
export function highlight(text, language) {
  const name = language.toLowerCase();
  const expression = Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : undefined;
  if (!expression || text.length > LONGEST) return [text];
  const out = [];
  let at = 0;
  for (const found of text.matchAll(expression)) {
    const kind = Object.entries(found.groups ?? {}).find(([, value]) => value !== undefined)?.[0];
    if (!kind || !found[0]) continue;
    if (found.index > at) out.push(text.slice(at, found.index));
    const span = document.createElement("span");
    span.className = `hl-${kind}`;
    span.textContent = found[0];
    out.push(span);
    at = found.index + found[0].length;
  }
  out.push(text.slice(at));
  return out;
}
