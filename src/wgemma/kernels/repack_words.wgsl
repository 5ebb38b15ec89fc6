// F32, F16 and BF16 stay as they are: {{WORDS}} words per 32 weights, zeros where a row has fewer.

fn repack(block: u32, goal: u32) {
  let row = block / params.blocks * params.row_words;
  let first = block % params.blocks * {{WORDS}}u;
  for (var i = 0u; i < {{WORDS}}u; i++) {
    var word = 0u;
    if (first + i < params.row_words) { word = raw[row + first + i]; }
    codes[goal * {{WORDS}}u + i] = word;
  }
}
