// Vector i of a block's output o [R, K] f32; with PARTS of [parts, R, K], partial sums that are added up in this order.

fn pending(i: u32) -> vec4<f32> {
//#if PARTS
  var sum = vec4<f32>();
  for (var part = 0u; part < params.o_parts; part += 4u) {
    // Four in flight.
//#for j in 4
    let o{{j}} = o[min(part + {{j}}u, params.o_parts - 1u) * params.o_step + i];
//#endfor
//#for j in 4
    if (part + {{j}}u < params.o_parts) { sum += o{{j}}; }
//#endfor
  }
  return sum;
//#else
  return o[i];
//#endif
}
