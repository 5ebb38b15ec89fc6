// The levels of a type that has them (levels.wgsl), without workgroup memory.

//#if LEVELS
fn level_number(code: u32) -> f32 {
  return f32(level(code));
}
//#endif
