// The inner product of matvec.wgsl and experts_matvec.wgsl, as statements: sum0 and sum1 get what a lane's blocks of two
// rows of W give with x. `raw` holds the first blocks of these rows, and of the next ones when it is done.

    // Told by a parameter, not by a constant, lest a compiler unroll it: fetching instructions takes time, too.
    for (var start = 0u; start < params.blocks; start += STEP) {
      // What is fetched next: further blocks of these rows, or the first ones of the next rows.
      let done = start + STEP >= params.blocks;
      let ahead = select(start + STEP, 0u, done);
      let more = !(done && last_rows);
//#if WHOLE
      let base = start;
//#else
      let base = start % SLICE;
      if (base == 0u) {
        workgroupBarrier();
//#if MADE
        lay_out(start, thread);
//#else
//#for j in SPAN
        put(thread + {{j}}u * 256u, near{{j}}, far{{j}});
//#endfor
//#endif
//#if !SUBGROUPS
        sum_slice(thread);
//#endif
        workgroupBarrier();
//#if !MADE
        let next = select(start + SLICE, 0u, start + SLICE >= params.blocks) * 4u;
//#for j in SPAN
        near{{j}} = get_x(input_row, 2u * (next + thread + {{j}}u * 256u));
        far{{j}} = get_x(input_row, 2u * (next + thread + {{j}}u * 256u) + 1u);
//#endfor
//#endif
      }
//#endif
      if (done) {
//#for i in 2
        row{{i}} = first_row + clamped(first + stride + own + {{i}}u);
//#endfor
      }
//#for d in DEPTH
      let block{{d}} = take(base + {{d}}u * LANES + lane);
//#for i in 2
      sum{{i}} += product(raw{{d}}_{{i}}, block{{d}});
      if (more) { raw{{d}}_{{i}} = fetch(row{{i}}, held(ahead + {{d}}u * LANES + lane)); }
//#endfor
//#endfor
    }
