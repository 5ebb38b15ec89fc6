// What tile.wgsl and tile_bytes.wgsl read of rows that were put together by their experts (group.wgsl).

//#if EXPERTS
@group(0) @binding(6) var<storage, read> tiles: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> order: array<u32>;
//#endif
//#if WEIGHTED
@group(0) @binding(8) var<storage, read> weights: array<f32>;
//#endif
