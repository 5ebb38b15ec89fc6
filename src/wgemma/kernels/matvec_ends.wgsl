// How matvec.wgsl and experts_matvec.wgsl end two rows of W, as statements: the lanes' sums become one, and one of the
// lanes hands them to `finish`.

//#if SUBGROUPS
//#for i in 2
    for (var step = 1u; step < {{WITHIN}}u; step *= 2u) { sum{{i}} += subgroupShuffleXor(sum{{i}}, step); }
//#endfor
//#endif
//#if WIDE
    let at = first + own;
    let writes = lane == 0u;
//#else
    workgroupBarrier();
    if (thread % {{WITHIN}}u == 0u) {
//#for i in 2
      pieces[{{i}}u * PIECES + thread / {{WITHIN}}u] = sum{{i}};
//#endfor
    }
    workgroupBarrier();
    let at = first + 2u * thread;
    let writes = thread < SETS;
    if (writes) {
//#for i in 2
      sum{{i}} = 0.0;
//#endfor
      for (var j = thread * (LANES / {{WITHIN}}u); j < (thread + 1u) * (LANES / {{WITHIN}}u); j++) {
//#for i in 2
        sum{{i}} += pieces[{{i}}u * PIECES + j];
//#endfor
      }
    }
//#endif
    if (writes) {
      finish(group, at, vec2<f32>(sum0, sum1));
    }
