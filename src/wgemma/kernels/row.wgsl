// A row is one token of one sequence. `sees` is the last position its sliding layers may look at: its own, or the end
// of the image it belongs to. An unused row has used = 0: it is computed like the others but leaves no trace. In any other
// used − 1 tells how many positions before the window sliding layers see, too: those of an image that is seen whole.

struct Row {
  used: u32,
  position: u32,
  token: u32,
  sees: u32,
}
