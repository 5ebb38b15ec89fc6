// F32, F16 and BF16 stay as they are: {{WORDS}} words per 32 weights.

fn repack(block: u32, goal: u32) {
  for (var i = 0u; i < {{WORDS}}u; i++) {
    codes[goal * {{WORDS}}u + i] = raw[block * {{WORDS}}u + i];
  }
}
