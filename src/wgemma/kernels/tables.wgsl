// Where a position lies: in place table[position / 64] · 64 + position % 64 of each layer's arena, and of the history.
//
// `rows` is one buffer: the rows of a pass, and behind them the page tables of their sequences, four pages a vector. Row r
// has its table at params.table + r · params.table_step; a step of 0 means that all rows belong to one sequence. Tables of
// full and of sliding layers differ. A table is only right where its sequence has pages: nobody may ask for others.
//
// Wants `rows` as array<vec4<u32>>, and row.wgsl.

const PAGE = 64u;

fn row_at(r: u32) -> Row {
  let words = rows[r];
  return Row(words.x, words.y, words.z, words.w);
}

fn table_of(r: u32) -> u32 {
  return params.table + r * params.table_step;
}

fn place_of(position: u32, table: u32) -> u32 {
  let page = position / PAGE;
  return rows[table + page / 4u][page % 4u] * PAGE + position % PAGE;
}
