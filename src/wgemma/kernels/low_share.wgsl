// What a thread has of one number of an adapter's z: its part of Σ_k a[n, k] · x[r, k] over a share of k, which is a
// workgroup's.
//
//   a [N, K] f32; x [R, K] f32
//
// This is all about waiting for memory, so {{AHEAD}} vectors of either are asked for at a time.

fn low_share(n: u32, r: u32, share: u32, shares: u32, thread: u32) -> f32 {
  let quads = row_blocks() * 8u;
  let each = (quads + shares - 1u) / shares;
  let end = min((share + 1u) * each, quads);
  var sum = 0.0;
  for (var i = share * each + thread; i < end; i += {{AHEAD}}u * {{THREADS}}u) {
//#for j in AHEAD
    let i{{j}} = min(i + {{j}}u * {{THREADS}}u, quads - 1u);
    let a{{j}} = a[n * quads + i{{j}}];
    let x{{j}} = x[r * quads + i{{j}}];
//#endfor
//#for j in AHEAD
    sum += select(0.0, dot(a{{j}}, x{{j}}), i + {{j}}u * {{THREADS}}u < end);
//#endfor
  }
  return sum;
}
