// A stretch is up to 64 consecutive positions. They lie in two pages at most, so two lookups serve them all, and from
// then on a place is a sum. Places count from the first of this segment of the arena, params.first; those elsewhere are
// not below params.count.
//
// Wants tables.wgsl.

struct Stretch {
  edge: u32,  // where the second page begins
  near: u32,  // place − position before the edge
  far: u32,   // and from there on
}

// The stretch from `begin` on; nobody asks for more than `last`.
fn stretch_at(begin: u32, last: u32, table: u32) -> Stretch {
  let first = min(begin, last);
  let edge = (first / PAGE + 1u) * PAGE;
  let second = min(edge, last);
  let near = place_of(first, table) - first - params.first;
  let far = place_of(second, table) - second - params.first;
  return Stretch(edge, near, far);
}

fn place_in(stretch: Stretch, position: u32) -> u32 {
  return position + select(stretch.near, stretch.far, position >= stretch.edge);
}

// Whether neither page belongs to this segment.
fn is_elsewhere(stretch: Stretch) -> bool {
  return min(stretch.edge - PAGE + stretch.near, stretch.edge + stretch.far) >= params.count;
}
