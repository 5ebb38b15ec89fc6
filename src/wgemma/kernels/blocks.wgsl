// K / 32: a constant where a kernel is made for rows of one length (BLOCKS), which then need not wait for its parameters
// before it asks for memory.

fn row_blocks() -> u32 {
//#if BLOCKS
  return {{BLOCKS}}u;
//#else
  return params.blocks;
//#endif
}
