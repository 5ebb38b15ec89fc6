// The levels of a type that has them (levels.wgsl), in workgroup memory: a workgroup calls hold_levels first, and a
// barrier must follow before it decodes. Lanes that look up different codes meet different banks.

//#if LEVELS
//#if QUICK
// 16i + c: level c in byte i of a word.
var<workgroup> shelf: array<u32, 64>;

fn hold_levels(thread: u32) {
  if (thread >= 16u) { return; }
  let byte = u32(level(thread) & 255);
//#for i in 4
  shelf[16u * {{i}}u + thread] = byte << (8u * {{i}}u);
//#endfor
}

fn level_bytes(c: u32) -> u32 {
  return shelf[c & 15u] | shelf[16u + ((c >> 8u) & 15u)] | shelf[32u + ((c >> 16u) & 15u)] | shelf[48u + (c >> 24u)];
}

fn level_number(code: u32) -> f32 {
  return f32(level(code));
}
//#else
var<workgroup> shelf: array<f32, 16>;

fn hold_levels(thread: u32) {
  if (thread < 16u) { shelf[thread] = f32(level(thread)); }
}

fn level_number(code: u32) -> f32 {
  return shelf[code];
}
//#endif
//#else
fn hold_levels(thread: u32) {}
//#endif
