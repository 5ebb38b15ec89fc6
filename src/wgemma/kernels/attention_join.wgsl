// out[r, head] = Σₛ e^(maxₛ − max) outₛ / Σₛ e^(maxₛ − max) sumₛ: the splits of attention.wgsl become one result.
//
//   partial [R, heads, splits, D + 2] f32: max, sum, out;  out [R, heads, D] f32
//
// One workgroup per (head, row). Grid: (heads, R).

struct Params {
  splits: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const D = {{HEAD}}u;

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let which = group.y * groups.x + group.x;
  let first = which * params.splits * (D + 2u);
  var highest = -3.0e38;
  for (var s = 0u; s < params.splits; s++) { highest = max(highest, partial[first + s * (D + 2u)]); }
  var total = 0.0;
  for (var s = 0u; s < params.splits; s++) {
    let at = first + s * (D + 2u);
    total += exp(partial[at] - highest) * partial[at + 1u];
  }
  for (var d = thread; d < D; d += 128u) {
    var sum = 0.0;
    for (var s = 0u; s < params.splits; s++) {
      let at = first + s * (D + 2u);
      sum += exp(partial[at] - highest) * partial[at + 2u + d];
    }
    out[which * D + d] = sum / max(total, 1.0e-37);
  }
}
