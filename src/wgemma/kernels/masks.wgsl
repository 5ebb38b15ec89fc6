// Which tokens a grammar allows next, for the slots that have one. A token is drawn first, as if there were no grammar. If
// it is forbidden, it is drawn again among those that are not: of those the settings had left, or, where none of them is
// allowed, of those the settings leave of the allowed ones. Keys of forbidden tokens count as 0 then.
//
//   masks [slots, 1 + V / 32] u32: the position of the token they are for, or 0, then a bit for each token
//
// Wants row.wgsl and `params.vocab`.

fn first_mask(slot: u32) -> u32 {
  return slot * (1u + (params.vocab + 31u) / 32u);
}

// Whether the token just drawn is forbidden; `row` is the next one already.
fn is_forbidden(row: Row, slot: u32) -> bool {
  let first = first_mask(slot);
  let bits = masks[first + 1u + row.token / 32u];
  return row.used != 0u && masks[first] == row.position && ((bits >> (row.token % 32u)) & 1u) == 0u;
}

// A slot's keys of four tokens, those of forbidden ones made 0.
fn allowed(keys: vec4<u32>, quad: u32, slot: u32) -> vec4<u32> {
  let word = min(quad / 8u, (params.vocab + 31u) / 32u - 1u);
  let bits = masks[first_mask(slot) + 1u + word] >> (4u * (quad % 8u));
  return select(vec4<u32>(), keys, ((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) != vec4<u32>());
}
