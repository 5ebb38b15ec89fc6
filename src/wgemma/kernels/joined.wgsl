// An input that up to four splits of a history gave, put together as attention_join.wgsl does, for row r:
//
//   x[head] = Σₛ e^(maxₛ − max) outₛ / Σₛ e^(maxₛ − max) sumₛ
//
//   partial  f32: out of every split [R, heads, splits, {{HEAD}}], then (max, sum) [R, heads, splits, 2]
//
// `prepare` reads memory once and leaves x in registers as residual.wgsl does: near{j} and far{j} of a thread are elements
// 8i … 8i + 3 and 8i + 4 … 8i + 7 with i = thread + {{THREADS}} j, zeros past the end. heads · 4 ≤ {{THREADS}}.

@group(0) @binding(3) var<storage, read> partial: array<vec4<f32>>;

const HEAD_QUADS = {{HEAD}}u / 4u;

//#for j in PAIRS
var<private> near{{j}}: vec4<f32>;
var<private> far{{j}}: vec4<f32>;
//#endfor
var<workgroup> factors: array<f32, {{THREADS}}>;  // of every head's four splits

// What split s found of vector i.
fn found(r: u32, i: u32, s: u32) -> vec4<f32> {
  if (i >= row_blocks() * 8u || s >= params.splits) { return vec4<f32>(); }
  return partial[((r * params.heads + i / HEAD_QUADS) * params.splits + s) * HEAD_QUADS + i % HEAD_QUADS];
}

// (max, sum) of a split.
fn end_of(which: u32) -> vec2<f32> {
  let two = partial[params.ends + which / 2u];
  return select(two.xy, two.zw, which % 2u == 1u);
}

// How much of split thread % 4 goes into the result of head thread / 4, and nothing where there is no such head.
fn factor_of(r: u32, thread: u32) -> f32 {
  let head = thread / 4u;
  if (head >= params.heads) { return 0.0; }
  let first = (r * params.heads + head) * params.splits;
  let last = params.splits - 1u;
//#for s in 4
  let end{{s}} = end_of(first + min({{s}}u, last));
//#endfor
  let own = end_of(first + min(thread % 4u, last)).x;
  let highest = max(max(end0.x, end1.x), max(end2.x, end3.x));
  var total = 0.0;
//#for s in 4
  if ({{s}}u <= last) { total += exp(end{{s}}.x - highest) * end{{s}}.y; }
//#endfor
  return exp(own - highest) / max(total, 1.0e-37);
}

fn prepare(r: u32, me: Thread, writes: bool) {
//#for j in PAIRS
  let i{{j}} = 2u * (me.index + {{j}}u * {{THREADS}}u);
//#for s in 4
  let near{{j}}_{{s}} = found(r, i{{j}}, {{s}}u);
  let far{{j}}_{{s}} = found(r, i{{j}} + 1u, {{s}}u);
//#endfor
//#endfor
  factors[me.index] = factor_of(r, me.index);
  workgroupBarrier();
//#for j in PAIRS
  let first{{j}} = min(i{{j}} / HEAD_QUADS * 4u, {{THREADS}}u - 4u);
  near{{j}} = vec4<f32>();
  far{{j}} = vec4<f32>();
//#for s in 4
  near{{j}} += factors[first{{j}} + {{s}}u] * near{{j}}_{{s}};
  far{{j}} += factors[first{{j}} + {{s}}u] * far{{j}}_{{s}};
//#endfor
//#endfor
}
