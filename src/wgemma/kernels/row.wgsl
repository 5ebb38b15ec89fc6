// A row is one token of one sequence. `sees` is the last position its sliding layers may look at: its own, or the end
// of the image it belongs to. An unused row has used = 0: it is computed like the others but leaves no trace.

struct Row {
  used: u32,
  position: u32,
  token: u32,
  sees: u32,
}
