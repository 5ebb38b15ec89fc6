// The planes of a block (bit_planes.wgsl) whose 16 bytes from `at` on hold elements 0–15 in their low nibbles and 16–31
// in the high. Nibble c is called LABELS[c] there.

fn put_planes(goal: u32, at: u32) {
  var planes = vec4<u32>();
  for (var element = 0u; element < 32u; element++) {
    let code = (byte(at + (element & 15u)) >> ((element >> 4u) * 4u)) & 15u;
    let label = (select(LABELS.x, LABELS.y, code >= 8u) >> (4u * (code & 7u))) & 15u;
    let bits = (vec4<u32>(label) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    planes |= bits << vec4<u32>(8u * (element & 3u) + (element >> 2u));
  }
//#for i in 4
  codes[goal * 4u + {{i}}u] = planes[{{i}}];
//#endfor
}
