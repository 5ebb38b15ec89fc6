// Logits as integers in the same order: a larger float has a larger key, equal ones (−0 and 0) the same. NaN has the
// largest, so that a key ≥ INFINITE tells of a bad logit; no number has the key 0.

const INFINITE = 0xff800000u;
const LOWEST = -3.4e38;  // −Inf is below it: a suppressed token never wins

fn keys_of(values: vec4<f32>) -> vec4<u32> {
  let bits = bitcast<vec4<u32>>(values);
  let size = bits & vec4<u32>(0x7fffffffu);
  let negative = (bits != size) & (size != vec4<u32>());
  let keys = select(size | vec4<u32>(0x80000000u), ~bits, negative);
  return select(keys, vec4<u32>(0xffffffffu), size > vec4<u32>(0x7f800000u));
}

fn key_of(value: f32) -> u32 {
  return keys_of(vec4<f32>(value)).x;
}

fn value_of(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

fn largest(keys: vec4<u32>) -> u32 {
  return max(max(keys.x, keys.y), max(keys.z, keys.w));
}
